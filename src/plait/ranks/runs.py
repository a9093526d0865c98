"""Where the record of a run is kept: a directory that is there before the run, to be filled when it is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import platformdirs

from plait.errors import RequestError


@contextmanager
def reserved_run(asked: Path | None) -> Iterator[Path]:
    """The directory for a run: `asked`, or a new one below the user's state directory. Made now, to be filled later.

    It goes away again where the run failed and left it empty. Errors: RequestError where it cannot be made, or
    something else is there.
    """
    place = _reserve(asked or _new_run())
    try:
        yield place
    finally:
        with suppress(OSError):  # it is not empty: the run is in it
            place.rmdir()


def _reserve(place: Path) -> Path:
    try:
        place.mkdir(parents=True, exist_ok=True)
        taken = [path.name for path in place.iterdir()]
    except OSError as error:
        raise RequestError(f"--run {place} cannot be made: {error.strerror}") from None
    if taken and "run.json" not in taken:
        raise RequestError(f"--run {place} holds something else than a run ({taken[0]}): give another directory")
    return place


def _new_run() -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    runs = Path(platformdirs.user_state_dir("plait")) / "runs"
    for number in count():
        place = runs / (stamp if number == 0 else f"{stamp}-{number}")
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # reserve_run says why
            return place
        return place
    raise AssertionError("unreachable")
