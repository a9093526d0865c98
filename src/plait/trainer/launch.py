"""Starts the ranks of a training run on this host, a process each, and follows them to their end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import IO

from plait.plans.layout import Layout
from plait.ranks.listener import Listener, rank_name
from plait.ranks.processes import RankProcesses
from plait.spec.emulation import Emulation
from plait.trainer.data import Ids
from plait.trainer.protocol import Finished, Setup, ToFront, ToRank, Work

Hear = Callable[[ToFront], None]
"""Called with everything that a rank says."""


class TrainRanks(RankProcesses[ToRank, ToFront]):
    """The ranks of `layout`; they read the ids from an open file that has no name."""

    def __init__(
        self, layout: Layout, work: Work, ids: Ids, *, layer_wise: bool, emulation: Emulation | None = None
    ) -> None:
        with tempfile.TemporaryFile(prefix="plait") as file:
            _write(ids, file)

            def setup(rank: int, mesh: Mapping[str, object]) -> Setup:
                return Setup(rank, work, dict(mesh), file.fileno(), ids.dtype.itemsize)

            super().__init__(
                "plait.trainer.process",
                layout,
                ToFront,
                setup,
                beside=layout.tp if layer_wise else layout.ranks,
                descriptors=(file.fileno(),),
                emulation=emulation,
            )


def _write(ids: Ids, file: IO[bytes]) -> None:
    ids.tofile(file)
    file.flush()


def follow(ranks: TrainRanks, layout: Layout, hear: Hear) -> None:
    """Hear all ranks until each has finished. Errors: the one that began it, where a rank failed or died."""
    with ExitStack() as stack:
        stack.callback(ranks.stop)
        listener: Listener[ToFront] = Listener(ranks, Finished, lambda rank: rank_name(layout, rank), agreeing=True)
        stack.callback(listener.close)
        left = layout.ranks
        while left:
            for message in listener.arrived():
                left -= isinstance(message, Finished)
                hear(message)
