"""The text that a model learns from: read and tokenized once, then cut into batches that are the same on every mesh.

A sequence takes `sequence` tokens, and the one after them as the last target; sequences lie side by side in the text.
Their order is a permutation for every pass over the text (an epoch), by a counter hash of (seed, epoch).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plait.errors import DataError
from plait.nn.hashing import fold, mix
from plait.text.tokenizer import Tokenizer
from plait.trainer.batch import Batch

BYTE_VALUES = 256
"""The vocabulary of a text that is read byte by byte."""

_ORDER = 0x6F72646572  # what makes this key another than those of weights and dropout: "order" in ASCII

Ids = NDArray[np.unsignedinteger[Any]]


class Sequences:
    """Batches of `batch` sequences out of token `ids`. Errors: DataError where there are too few for one sequence."""

    def __init__(self, ids: Ids, sequence: int, batch: int, seed: int, source: str = "the text") -> None:
        self._ids, self._sequence, self._batch, self._seed = ids, sequence, batch, seed
        self.count = (len(ids) - 1) // sequence
        if self.count < 1:
            raise _too_few(len(ids), sequence, source)
        self._orders: dict[int, NDArray[np.int64]] = {}

    def batch(self, step: int) -> Batch:
        """The batch of a step: tokens and, one place further on, targets, int64 [batch, sequence]."""
        places = [self._place(number) for number in range(step * self._batch, (step + 1) * self._batch)]
        firsts = np.array(places, np.int64) * self._sequence
        taken = self._ids[firsts[:, None] + np.arange(self._sequence + 1)]  # [batch, sequence + 1]
        rows = torch.from_numpy(taken.astype(np.int64))
        return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())

    def _place(self, number: int) -> int:
        """Which sequence of the text is the run's sequence `number`."""
        epoch, place = divmod(number, self.count)
        if epoch not in self._orders:
            self._orders = {known: order for known, order in self._orders.items() if known == epoch - 1}
            self._orders[epoch] = order_of(self._seed, epoch, self.count)
        return int(self._orders[epoch][place])


def order_of(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """A permutation of `count` sequences: by their hashes, which are all different (the mix is a bijection)."""
    hashes = mix(fold(_ORDER, seed, epoch), torch.arange(count, dtype=torch.int64))
    return hashes.argsort(stable=True).numpy()


def _too_few(tokens: int, sequence: int, source: str) -> DataError:
    need = sequence + 1
    shorter = f", or --sequence-length {tokens - 1}" if tokens > 1 else ""
    return DataError(
        f"{source} holds {tokens} token{'' if tokens == 1 else 's'}, but one sequence of {sequence} and the token "
        f"after it are {need}: {need - tokens} too few; give a longer text{shorter}"
    )


def read_ids(paths: Sequence[Path], tokenizer: Tokenizer | None) -> Ids:
    """The token ids of all text in `paths`: files, and the .txt files of directories, in the order of their names.

    Without a tokenizer a token is a byte. With one, its end-of-text id stands between two files. Errors: DataError.
    """
    files = text_files(paths)
    pieces = [_encoded(file, tokenizer, last=file is files[-1]) for file in files]
    ids: Ids = np.concatenate(pieces)
    if not len(ids):
        raise DataError(f"{_listed(files)} {'is' if len(files) == 1 else 'are'} empty: give a text to train on")
    return ids


def text_files(paths: Sequence[Path]) -> list[Path]:
    """The files that are read. Errors: DataError where one is missing, or a directory has none."""
    if not paths:
        raise DataError("no text was given: name a file to train on, as in --data text.txt")
    return [file for path in paths for file in _files(path)]


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        if not path.exists():
            raise DataError(f"--data {path}: no such file or directory")
        yield path
        return
    found = sorted(path.rglob("*.txt"))
    if not found:
        raise DataError(f"--data {path} is a directory without .txt files: name the files themselves")
    yield from found


def _encoded(file: Path, tokenizer: Tokenizer | None, *, last: bool) -> Ids:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"--data {file} cannot be read: {error.strerror}") from None
    text = _decoded(content, file)
    if tokenizer is None:
        return np.frombuffer(content, np.uint8)
    ids = tokenizer.encode(text, add_special=False)
    ids += tokenizer.eos[:1] if ids and not last else ()
    return np.array(ids, np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


def _decoded(content: bytes, file: Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"--data {file} is not UTF-8 text: byte {error.start} (line {line}) is 0x{content[error.start]:02x}; "
            f"convert it first, as in iconv -f latin1 -t utf-8 {file.name}"
        ) from None


def digest(ids: Ids) -> str:
    """A digest of the ids, by which ranks of several hosts see that they read the same."""
    return hashlib.sha256(np.ascontiguousarray(ids).data).hexdigest()


def _listed(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files[:3])) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
