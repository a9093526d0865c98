"""The critical path in a few figures: what a run's length is made of, and the longest spans on it."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal, NamedTuple

from plait.plans.action import Lane
from plait.plans.notation import format_action
from plait.reports.marks import PASS_WORDS
from plait.reports.view import View
from plait.timeline.causes import critical_path, goes_s
from plait.timeline.compare import parts, summarise
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline
from plait.units import format_seconds

HAND_OVER = "links and hand-over"
"""Between a cause's end and the begin of what it let go: latency, waking up, and clocks that are not quite the same."""

_EXCHANGES, _WAITS, _MESSAGES = "exchanges", "waits for others", "messages"
_MOVED = {"G": "reductions", "A": "gathers", "T": "reductions"}

OF_GENERATION = (PASS_WORDS["F"], _EXCHANGES, _WAITS, _MESSAGES, HAND_OVER)
"""All that a path of generation can be made of, in the order of `parts_json`."""

OF_TRAINING = (*PASS_WORDS.values(), _EXCHANGES, _WAITS, _MESSAGES, "reductions", "gathers", HAND_OVER)
"""All that a path of training can be made of, in the order of `parts_json`."""


class Path(NamedTuple):
    """A critical path: seconds by what, the largest first, which add up to the makespan; ranks; the longest spans."""

    source: str
    spans: int
    ranks: tuple[int, ...]
    seconds: tuple[tuple[str, float], ...]
    longest: tuple[tuple[str, float], ...]


_LONGEST = 3

_LITTLE = 0.005
"""What is a smaller part of a critical path is told together."""


class PathWords(NamedTuple):
    """A critical path in words: how long it is, what that is made of, and its longest spans."""

    title: str
    made_of: str
    longest: str


def path_of(view: View, timeline: Timeline) -> Path:
    """The critical path of one of the view's timelines.

    Where spans overlap, each moment counts once. The makespan ends with the last that is no wait (`summarise`): a last
    token that is still under way then is not in it.
    """
    indices = critical_path(timeline, view.causes[timeline.source])
    chain = [timeline.spans[index] for index in indices]
    seconds: dict[str, float] = defaultdict(float)
    whole = summarise(timeline)
    reached_s = whole.start_s
    for span in chain:
        begin_s = min(whole.end_s, max(reached_s, goes_s(span)))
        end_s = min(whole.end_s, span.end_s)
        if begin_s > reached_s:
            seconds[HAND_OVER] += begin_s - reached_s
        if end_s > begin_s:
            for what, each_s in _made_of(span, begin_s, end_s):
                seconds[what] += each_s
        reached_s = max(begin_s, end_s)
    longest = sorted(chain, key=lambda span: -round(span.end_s - goes_s(span), 9))[:_LONGEST]
    return Path(
        timeline.source,
        len(chain),
        tuple(sorted({span.rank for span in chain})),
        tuple(sorted(seconds.items(), key=lambda one: -one[1])),
        tuple((f"{format_action(span.action)} on rank {span.rank}", span.end_s - goes_s(span)) for span in longest),
    )


def parts_json(path: Path, task: Literal["generate", "train"]) -> dict[str, float]:
    """The path's seconds by what, in one order: what the task can have is always there, 0 where the path has none.

    What the task cannot have is there where the path has it: of a record that is damaged.
    """
    seconds = dict(path.seconds)
    usual = OF_TRAINING if task == "train" else OF_GENERATION
    return {_key(what): seconds.get(what, 0.0) for what in OF_TRAINING if what in usual or what in seconds}


def _key(what: str) -> str:
    """``links_and_hand_over``."""
    return what.replace("-", "_").replace(" ", "_")


def path_words(path: Path) -> PathWords | None:
    """The path as text and page tell it; None where there is none."""
    if not path.spans:
        return None
    whole_s = sum(seconds for _, seconds in path.seconds)
    told = [one for one in path.seconds if one[1] >= _LITTLE * whole_s]
    rest_s = sum(each for what, each in path.seconds if (what, each) not in told)
    told += [("other", rest_s)] if rest_s > 0 else []
    made = [f"{what} {format_seconds(each)} ({_share(each, whole_s)})" for what, each in told if each > 0]
    on = f"{len(path.ranks)} ranks" if len(path.ranks) > 1 else f"rank {path.ranks[0]}"
    spans = f"{path.spans:,} span{'s' if path.spans != 1 else ''}"
    return PathWords(
        f"Critical path, {path.source}: {spans} on {on}, {format_seconds(whole_s)}",
        ", ".join(made) or "nothing that takes time",
        ", ".join(f"{name} {format_seconds(each)}" for name, each in path.longest),
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole * 100:.0f} %" if whole > 0 else "0 %"


def _made_of(span: Span, begin_s: float, until_s: float) -> list[tuple[str, float]]:
    """What a span did from `begin_s` until `until_s`: its parts, and between them its own sort."""
    letters = span.action.kind._value_
    if span.action.kind.lane is not Lane.COMPUTE:
        return [(_MOVED.get(letters, _MESSAGES), until_s - begin_s)]
    found, inside_s = [], 0.0
    for what, start_s, end_s in parts(span):
        each_s = max(0.0, min(end_s, until_s) - max(begin_s, start_s))
        if what != "compute" and each_s > 0:
            inside_s += each_s
            found.append((_EXCHANGES if what == "transfer" else _WAITS, each_s))
    return [*found, (PASS_WORDS[letters], max(0.0, until_s - begin_s - inside_s))]
