"""What the figures of memory do and do not hold, so that two of one rank that differ are both understood."""

from __future__ import annotations

from collections.abc import Iterator

from plait.planner.capacity import PROCESS_BYTES
from plait.reports.view import View
from plait.units import format_bytes


def memory_words(view: View, *, with_base: bool = False) -> Iterator[str]:
    """Sentences under the highest points; `with_base`: measured ones hold what a process held before loading."""
    bases = [track.base_bytes for one in view.timelines for track in one.memory.values() if track.base_bytes]
    if bases:
        before = f"the {format_bytes(max(bases))} that a process holds before it loads anything"
        yield f"Measured with {before}, predicted without." if with_base else f"Measured without {before}."
    if not _has_peaks(view):
        return
    if view.measured is not None:
        yield "Peak memory is the most that a process held in all its life: with that, and with what loading took."
    elif view.task == "generate":
        yield (
            f"Peak memory is what the planner asks of a device: with {format_bytes(PROCESS_BYTES)} for the process, "
            "and the whole cache."
        )


def _has_peaks(view: View) -> bool:
    """True where the figures have a peak of some stage."""
    told = [one for source in ("predicted", "measured") for one in (view.figures.get(source) or {}).get("stages", ())]
    return any(one.get("peak_bytes") is not None for one in told)
