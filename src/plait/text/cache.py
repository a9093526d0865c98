"""Converted tokenizers are kept in the user's cache: converting takes seconds, loading the result 0.1 s.

A file that is missing, unreadable or corrupt is converted again, in silence: the cache only ever saves time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    import tokenizers

_FORMAT = 1  # counts up when the same input must give another tokenizer


def cache_key(*parts: object) -> str:
    """A name for what a tokenizer is converted from: plain values or bytes."""
    digest = hashlib.sha256(str(_FORMAT).encode())
    for part in parts:
        data = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True, default=str).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


def cached_tokenizer(key: str, convert: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """The tokenizer kept under `key`, or the one that `convert` makes, which is then kept."""
    path = platformdirs.user_cache_path("plait") / "tokenizers" / f"{key}.json"
    kept = _read(path)
    if kept is not None:
        return kept
    made = convert()
    with suppress(OSError):  # a read-only or full disk costs time, never the answer
        _write(path, made.to_str())
    return made


def _read(path: Path) -> tokenizers.Tokenizer | None:
    from tokenizers import Tokenizer

    if not path.is_file():
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # the library raises plain Exception for whatever is wrong with a file
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
