"""What was measured on this host, kept in the user's cache directory until it cannot be trusted."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import platformdirs

from plait.prober.host import Others, doubtful

T = TypeVar("T")


class _Kept(msgspec.Struct, Generic[T], frozen=True):
    """The file's content: what was measured, on which host, and beside how much work of others."""

    host: str
    measured: T
    others: float
    measured_at_s: float


def kept(name: str, host: str, kind: type[T], measure: Callable[[], T], *, fresh: bool = False) -> T:
    """What `measure` found on `host` (all that it depends on, in words) now or earlier; `fresh` measures again."""
    path = _path(name, host)
    known = None if fresh else _read(path, kind)
    if known is None or known.host != host or doubtful(known.others, known.measured_at_s):
        with Others() as others:
            measured = measure()
        known = _Kept(host, measured, others.share, time.time())
        _write(known, path)
    return known.measured


def _path(name: str, host: str) -> Path:
    digest = hashlib.sha256(host.encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("plait")) / "calibrations" / f"{name}-{digest}.json"


def _read(path: Path, kind: type[T]) -> _Kept[T] | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kept[kind])  # type: ignore[valid-type]
    except (OSError, msgspec.MsgspecError):
        return None


def _write(one: _Kept[T], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(msgspec.json.encode(one))
    os.replace(partial, path)
