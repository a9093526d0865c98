"""Which part of a run a picture shows: some rounds, in each timeline from the first one's beginning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from plait.errors import UsageError
from plait.plans.action import Kind, Lane
from plait.plans.round import Round
from plait.timeline.compare import summarise
from plait.timeline.record import RoundRecipe
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

DECODE_ROUNDS = 4
"""How many rounds after the prefill are shown where nobody asked for others."""


_DIGITS = 18
"""Of a round's number."""

_TOLD = 40
"""Characters of a range that cannot be read which are said again."""


class RoundRange(NamedTuple):
    """Rounds [first, end); None where the run begins or ends."""

    first: int | None = None
    end: int | None = None


class Window(NamedTuple):
    """What is shown of each timeline: from `starts_s` to `ends_s`. `caption` says which part that is."""

    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    caption: str

    @property
    def duration_s(self) -> float:
        """The longest of them: the common time scale ends there."""
        return max(end_s - start_s for start_s, end_s in zip(self.starts_s, self.ends_s, strict=True))


def parse_rounds(text: str) -> RoundRange:
    """``3:7`` is rounds 3 to 6, ``3:`` all from 3 on, ``:7`` the first seven, ``3`` that one. Errors: UsageError."""
    match = re.fullmatch(rf"\s*(\d{{0,{_DIGITS}}})\s*(?:(:)\s*(\d{{0,{_DIGITS}}})\s*)?", text)
    if match is None or not (match[1] or match[2]):
        given = repr(text if len(text) <= _TOLD else f"{text[:_TOLD]}…")
        raise UsageError(f"{given} is not a range of rounds: expected first:end, as in '0:5', which is rounds 0 to 4")
    first = int(match[1]) if match[1] else None
    if not match[2]:
        return RoundRange(int(match[1]), int(match[1]) + 1)
    end = int(match[3]) if match[3] else None
    if end is not None and end <= (first or 0):
        raise UsageError(
            f"rounds {text!r} hold none: the end, {end}, must be above the first, {first or 0}; "
            f"'{first or 0}:{(first or 0) + 1}' is one round"
        )
    return RoundRange(first, end)


def count_prefill(rounds: Iterable[Round | RoundRecipe]) -> int:
    """How many rounds stand before the first in which every row is one token that yields the next."""
    count = 0
    for one in rounds:
        rows = [row for micro_batch in one.work for row in micro_batch.rows]
        if rows and all(row.length == 1 and row.samples for row in rows):
            break
        count += 1
    return count


def choose_window(timelines: Sequence[Timeline], asked: RoundRange | None = None, prefill: int = 1) -> Window:
    """The rounds `asked` for, else the first `prefill` ones and a few more. Errors: UsageError where there are none."""
    numbers = sorted({span.action.round for timeline in timelines for span in timeline.spans})
    if not numbers:
        raise UsageError("nothing to draw: the timelines hold no spans")
    shown = _shown(numbers, asked, prefill)
    bounds = [_bounds(timeline, set(shown), shown == numbers) for timeline in timelines]
    starts_s, ends_s = tuple(start_s for start_s, _ in bounds), tuple(end_s for _, end_s in bounds)
    window = Window(starts_s, ends_s, "")
    return window._replace(caption=_caption(numbers, shown, timelines, window.duration_s))


def _shown(numbers: list[int], asked: RoundRange | None, prefill: int) -> list[int]:
    if asked is None:
        return numbers[: prefill + DECODE_ROUNDS]
    first = numbers[0] if asked.first is None else asked.first
    end = numbers[-1] + 1 if asked.end is None else asked.end
    shown = [number for number in numbers if first <= number < end]
    if not shown:
        raise UsageError(
            f"the run has none of the rounds {_asked(asked)}: it has {_named(numbers)}; "
            f"'{numbers[-1]}:' shows the last, '{numbers[0]}:' all"
        )
    return shown


def _bounds(timeline: Timeline, shown: set[int], whole: bool) -> tuple[float, float]:
    """From the rounds' first work to the last.

    Receives do not count in a part of a run: a rank may wait long before its round, and take the tokens long after.
    """
    if whole:
        summary = summarise(timeline)
        return summary.start_s, summary.end_s
    spans: Sequence[Span] = [span for span in timeline.spans if span.action.round in shown]
    spans = [span for span in spans if not span.action.kind.receives]
    if not spans:
        return 0.0, 0.0
    return min(span.start_s for span in spans), max(span.end_s for span in spans)


def _caption(numbers: list[int], shown: list[int], timelines: Sequence[Timeline], duration_s: float) -> str:
    unit = "step" if _is_training(timelines) else "round"
    if shown == numbers:
        return _whole(numbers, unit)
    whole_s = max(timeline.makespan_s for timeline in timelines)
    return (
        f"Shown: {_named(shown, unit)} of {_all(numbers, unit)} ({_ms(duration_s)} of {_ms(whole_s)} ms), "
        f"from the beginning of {unit} {shown[0]}; --rounds first:end shows others."
    )


def _is_training(timelines: Sequence[Timeline]) -> bool:
    """True where something else than forwards is computed: then a round is a step."""
    kinds = (span.action.kind for timeline in timelines for span in timeline.spans)
    return any(kind.lane is Lane.COMPUTE and kind is not Kind.FORWARD for kind in kinds)


def _whole(numbers: Sequence[int], unit: str) -> str:
    """All that there is; of training not all steps need to have been kept."""
    if unit == "round":
        return f"All of the run: {_named(numbers, unit)}."
    if len(numbers) == 1:
        return f"Shown: step {numbers[0]}, the only one{' kept' if numbers[0] else ''}."
    return f"Shown: {_named(numbers, unit)}, all that were kept."


def _all(numbers: Sequence[int], unit: str) -> str:
    """How many there are; where some were not kept, which."""
    if numbers[-1] == len(numbers) - 1:
        return str(len(numbers))
    return f"the {len(numbers)} kept, {_named(numbers, unit)}"


def _ms(duration_s: float) -> str:
    """Four digits, or whole milliseconds."""
    return f"{duration_s * 1e3:.4g}" if duration_s < 10 else f"{duration_s * 1e3:.0f}"


def _named(numbers: Sequence[int], unit: str = "round") -> str:
    if len(numbers) == 1:
        return f"{unit} {numbers[0]}"
    return f"{unit}s {numbers[0]} to {numbers[-1]}"


def _asked(asked: RoundRange) -> str:
    first, end = ("" if bound is None else bound for bound in asked)
    return f"{first}:{end}"
