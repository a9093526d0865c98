"""What all benchmarks share: open models that take turns, medians, and tables.

Variants that are compared are open at the same time and take turns within every repetition, so that what the machine
does meanwhile meets all of them. Figures are medians over repetitions, a ratio the median of the repetitions' ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from typing import TypeVar

from plait.generation.launch import ProcessRanks
from plait.generation.opened import Opened, open_model
from plait.generation.protocol import Submit
from plait.generation.session import Session
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.plans.sampling import SamplingParams

T = TypeVar("T")

PROMPT = "Explain in a few sentences why the sky is blue, and why sunsets are red."


@dataclass(frozen=True, slots=True)
class Timing:
    """One batch of requests: seconds until all had their first token, tokens a second of all users after that."""

    prefill_s: float
    decode_tokens_per_s: float


class OpenModel:
    """A plan whose ranks are loaded and wait."""

    def __init__(self, opened: Opened, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        self._session = Session(plan, ProcessRanks(plan, opened.index, trace=trace))
        self._numbers = count()

    def __enter__(self) -> OpenModel:
        self._session.__enter__()
        self._session.wait_ready()
        return self

    def __exit__(self, *error: object) -> None:
        self._session.__exit__(None, None, None)

    def ask(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Timing:
        """All prompts at once, each answered with exactly `max_tokens` tokens."""
        start = time.perf_counter()
        for prompt in prompts:
            self._session.submit(Submit(next(self._numbers), list(prompt), max_tokens, [], SamplingParams()))
        firsts: dict[int, float] = {}
        arrivals: list[float] = []
        for token in self._session.tokens(len(prompts)):
            arrivals.append(time.perf_counter())
            firsts.setdefault(token.request, arrivals[-1])
        prefilled = max(firsts.values())
        later = [moment for moment in arrivals if moment > prefilled]
        rate = len(later) / (later[-1] - prefilled) if later else 0.0
        return Timing(prefilled - start, rate)


def demo() -> Opened:
    """The demo model."""
    return open_model("demo")


def make_plan(
    counts: Sequence[int],
    *,
    schedule: str = "layerwise",
    micro_batches: int = 1,
    threads: int = 1,
    dtype: str = "float32",
    chunk: int = 512,
    slots: int = 1,
    context: int = 640,
    tp: int = 1,
) -> Plan:
    """A plan whose stages hold so many layers each, on `tp` ranks that share them."""
    ends = [0, *accumulate(counts)]
    stages = tuple(
        Stage(cut, tuple(range(tp * at, tp * at + tp)), dtype, dtype, threads) for at, cut in enumerate(pairwise(ends))
    )
    axes = {"pp": len(counts), "tp": tp} if tp > 1 else {"pp": len(counts)}
    layout = Layout(axes, stages, max(4, 2 * micro_batches))
    return Plan("demo", layout, schedule, micro_batches, chunk, context, slots)


def take_turns(
    opened: Opened,
    plans: Mapping[str, Plan],
    ask: Callable[[OpenModel], T],
    repetitions: int = 5,
) -> dict[str, list[T]]:
    """`ask` of every plan's model, one after another, in every repetition; the first round only warms up."""
    figures: dict[str, list[T]] = {name: [] for name in plans}
    with ExitStack() as stack:
        models = {name: stack.enter_context(OpenModel(opened, plan)) for name, plan in plans.items()}
        for repetition in range(repetitions + 1):
            for name, model in models.items():
                value = ask(model)
                if repetition:
                    figures[name].append(value)
    return figures


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the repetitions' ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats with three digits."""
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def verdict(value: float, target: float, unit: str = " ×", *, at_most: bool = False) -> str:
    """A figure beside what was asked for."""
    met = value <= target if at_most else value >= target
    word = "at most" if at_most else "at least"
    return f"{value:.2f}{unit} ({word} {target:g}{unit} wanted: {'met' if met else '**missed**'})"
