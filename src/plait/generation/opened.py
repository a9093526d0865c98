"""A model that can be asked: where it lies, what it looks like, and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.errors import RequestError
from plait.spec.model import ModelSpec
from plait.text.chat import chat_prompt
from plait.text.loading import tokenizer_from_directory, tokenizer_from_gguf
from plait.text.tokenizer import Tokenizer
from plait.weights.index import WeightsIndex, open_index
from plait.weights.source import resolve_model


@dataclass(frozen=True, slots=True)
class Opened:
    """A model's index and tokenizer, under the name it was asked for."""

    name: str
    index: WeightsIndex
    tokenizer: Tokenizer

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""
        return self.index.spec

    @property
    def stop(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return self.tokenizer.eos or self.spec.eos

    def encode(self, prompt: str, chat: bool | None = None) -> tuple[int, ...]:
        """Token ids of a prompt, as a chat or raw; None: as a chat where the model has a template for it."""
        if chat if chat is not None else self.tokenizer.chat_template is not None:
            return tuple(chat_prompt(self.tokenizer, prompt))
        return tuple(self.tokenizer.encode(prompt))


def open_model(name: str, say: Callable[[str], None] | None = None) -> Opened:
    """Find a model (a hub id is fetched) and read its headers and tokenizer. Errors: WeightsError, SpecError."""
    index = open_index(resolve_model(name, say).path)
    if index.format == "gguf":
        return Opened(name, index, tokenizer_from_gguf(index.metadata, index.source))
    place = Path(index.source)
    return Opened(name, index, tokenizer_from_directory(place if place.is_dir() else place.parent))


def encode_all(opened: Opened, prompts: Sequence[str], users: int, chat: bool | None) -> list[tuple[int, ...]]:
    """Token ids of every request: each prompt, repeated for every user. Errors: RequestError."""
    if not prompts:
        raise RequestError("no prompt was given: type one, or give a file with --prompt-file")
    return [ids for prompt in prompts for ids in [opened.encode(prompt, chat)] * users]
