"""Typed reading of a key-value description (a config.json, GGUF metadata), with errors that name the key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from plait.errors import SpecError, nearest

_MOST_LAYERS = 100_000


class Fields:
    """`values` under the title `what`, which every error message begins with.

    A method without `default` demands the key. A key whose value is None counts as absent.
    """

    def __init__(self, values: Mapping[str, Any], what: str) -> None:
        self.values = values
        self.what = what

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str) -> Any:
        """The raw value, or None."""
        return self.values.get(key)

    def fail(self, problem: str) -> SpecError:
        """An error about this description, to raise."""
        return SpecError(f"{self.what}: {problem}")

    def require(self, keys: Iterable[str]) -> None:
        """Raise SpecError listing every key that is absent."""
        missing = [key for key in keys if key not in self]
        if missing:
            raise self.fail(f"missing {', '.join(missing)}; without {_them(missing)} the model's shape is unknown")

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(f"{key} is {value!r}; it must be a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.fail(f"{key} is {value!r}; it must be a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.fail(f"{key} is {value!r}; it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A word."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.fail(f"{key} is {value!r}; it must be a word")
        return value

    def layers(self, key: str) -> int:
        """A count of layers: what is kept for each of them must fit in memory."""
        value = self.count(key)
        if value > _MOST_LAYERS:
            raise self.fail(f"{key} is {value}; no model has more than {_MOST_LAYERS} layers")
        return value

    def words(self, key: str) -> list[str] | None:
        """A list of words, or None where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise self.fail(f"{key} is {value!r}; it must be a list of words")
        return list(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids, none where the key is absent."""
        value = self.values.get(key)
        ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
        for each in ids:
            if isinstance(each, bool) or not isinstance(each, int) or each < 0:
                raise self.fail(f"{key} is {value!r}; it must be a token id or a list of them, each 0 or above")
        return tuple(ids)

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            self.require((key,))
        return default


def choices(given: object, known: Iterable[str]) -> str:
    """All known words, after the nearest one: ``did you mean 'llama'? (known: gpt2, llama)``."""
    words = sorted(known)
    hint, everything = nearest(str(given), words), "known: " + ", ".join(words)
    return everything if hint == everything else f"{hint} ({everything})"


def _them(keys: list[str]) -> str:
    return "it" if len(keys) == 1 else "them"
