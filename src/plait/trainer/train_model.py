"""What training begins with: a model's shape alone, or its weights too; and how it reads text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from plait.errors import SpecError
from plait.spec.checked import require_runnable
from plait.spec.inline import is_inline
from plait.spec.model import ModelSpec
from plait.spec.preset_files import preset_words
from plait.text.loading import tokenizer_from_directory, tokenizer_from_gguf
from plait.text.tokenizer import Tokenizer
from plait.trainer.data import BYTE_VALUES
from plait.trainer.initial import initial_tensor
from plait.weights.index import WeightsIndex, open_index
from plait.weights.load import load_stage
from plait.weights.model import model_spec
from plait.weights.source import DEMO, is_hub_id, looks_like_path, resolve_model

Say = Callable[[str], None]
Tensors = Callable[[str, tuple[int, ...]], Tensor]

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class Beginning:
    """A model under the name it was asked for. `index`: its weights; None where they begin at random.

    `tokenizer` None: a token is a byte of the text.
    """

    name: str
    spec: ModelSpec
    index: WeightsIndex | None
    tokenizer: Tokenizer | None

    @property
    def words(self) -> str:
        """``random weights, a token is a byte``."""
        weights = "random weights" if self.index is None else f"weights of {self.index.source}"
        return f"{weights}, {'a token is a byte' if self.tokenizer is None else 'its own tokenizer'}"


def open_beginning(name: str, say: Say | None = None) -> Beginning:
    """Find a model: one line, a preset or a config.json begins at random, all else has weights (a hub id is fetched).

    Errors: SpecError, WeightsError.
    """
    path = Path(name).expanduser()
    known = name == DEMO or is_hub_id(name) or looks_like_path(name) or path.exists()
    if is_inline(name) or name in preset_words("models") or not known:
        found = Beginning(name, model_spec(name), None, None)
    elif path.suffix == ".json" or (path.is_dir() and not _has_weights(path)):
        folder = path if path.is_dir() else path.parent
        found = Beginning(name, model_spec(name), None, _tokenizer_in(folder))
    else:
        index = open_index(resolve_model(name, say).path)
        found = Beginning(name, index.spec, index, _tokenizer_of(index))
    require_runnable(found.spec)
    _require_vocabulary(found)
    return found


def _has_weights(folder: Path) -> bool:
    return any(path for pattern in ("*.safetensors", "*.gguf", "*.bin") for path in folder.glob(pattern))


def _tokenizer_of(index: WeightsIndex) -> Tokenizer | None:
    if index.format == "gguf":
        return tokenizer_from_gguf(index.metadata, index.source)
    place = Path(index.source)
    return _tokenizer_in(place if place.is_dir() else place.parent)


def _tokenizer_in(folder: Path) -> Tokenizer | None:
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        return None
    return tokenizer_from_directory(folder)


def _require_vocabulary(found: Beginning) -> None:
    """Every token that the text can hold has a row of the embedding. Errors: SpecError."""
    vocab = found.spec.vocab
    if found.tokenizer is None and vocab < BYTE_VALUES:
        raise SpecError(
            f"{found.name} has no tokenizer, so that a token is a byte of the text, and a vocabulary of {vocab}, "
            f"but there are {BYTE_VALUES} bytes: {BYTE_VALUES - vocab} too few; give it vocab = {BYTE_VALUES}"
        )
    if found.tokenizer is not None and found.tokenizer.vocab_size > vocab:
        raise SpecError(
            f"the tokenizer of {found.name} has {found.tokenizer.vocab_size} tokens, but the model's vocabulary is "
            f"{vocab}: {found.tokenizer.vocab_size - vocab} too few"
        )


def initial_tensors(spec: ModelSpec, seed: int) -> Tensors:
    """Whole tensors, by name and shape, of a model that begins at random."""
    return lambda name, shape: initial_tensor(spec, name, shape, seed)


class StoredTensors:
    """Whole tensors, by name, of a model on disk, float32. They are read layer by layer, in any order."""

    def __init__(self, index: WeightsIndex) -> None:
        self._index = index
        self._layer = -1
        self._held: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: Iterable[int]) -> Tensor:
        """The tensor of that name; `shape` is what it must have."""
        layer = self._layer_of(name)
        if layer != self._layer:
            self._held = load_stage(self._index, layer, layer + 1, torch.float32)
            self._layer = layer
        tensor = self._held[name]
        assert tuple(tensor.shape) == tuple(shape), f"{name} is {tuple(tensor.shape)}, not {tuple(shape)}"
        return tensor

    def _layer_of(self, name: str) -> int:
        """A layer that the tensor is read with: its own, or the first or last."""
        kind, _, rest = name.partition(".")
        if kind == "layers":
            return int(rest.partition(".")[0])
        return 0 if kind in ("embed", "positions") else self._index.spec.layers - 1
