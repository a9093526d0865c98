"""`plait plan` with what `plait probe` has just written, against runs: tokens a second, and the first token.

Probes, plans and runs take turns, so that what else the machine does meets all of them; a figure is the middle of the
rounds. Other work on the machine makes single rounds useless, and their middle little better: measure on a quiet one.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, replace

from harness import PROMPT, demo, make_plan, table, verdict

import plait
from plait.generation.answer import Request, answer
from plait.generation.opened import Opened
from plait.planner.plan import Limits
from plait.spec.cluster import Cluster
from plait.timeline.metrics import generation_metrics

ROUNDS = 3
TOKENS, PROMPT_TOKENS = 48, 96
KEYS = ("decode_tokens_per_s", "ttft_s")


@dataclass(frozen=True)
class Case:
    """A way to run the model on so many ranks of this machine, which share its cores."""

    name: str
    pp: int
    tp: int
    threads: int
    dtype: str

    @property
    def ranks(self) -> int:
        return self.pp * self.tp


CASES = [
    Case(f"{name}, {dtype}", pp, tp, threads, dtype)
    for name, pp, tp, threads in (
        ("1 rank of 2 threads", 1, 1, 2),
        ("2 stages, a thread each", 2, 1, 1),
        ("2 tensor ranks, a thread each", 1, 2, 1),
    )
    for dtype in ("float32", "bfloat16")
]

Metrics = dict[str, float]


def predicted(cluster: Cluster, opened: Opened, case: Case) -> tuple[Metrics, list[int]]:
    """What the planner says of the case, and the layers of its stages."""
    limits = Limits(pp=case.pp, tp=case.tp, dp=1)
    choice = plait.plan(opened.spec, cluster, plait.Job(PROMPT_TOKENS, TOKENS), dtype=case.dtype, limits=limits)
    best = next(one for one in choice.candidates if (one.split.pp, one.split.tp) == (case.pp, case.tp))
    return {key: best.predicted[key] for key in KEYS}, [end - first for first, end in best.cut]


def measured(opened: Opened, case: Case, counts: list[int]) -> Metrics:
    """A run in fresh processes, as `plait generate` does it."""
    prompt = (opened.encode(PROMPT) * PROMPT_TOKENS)[:PROMPT_TOKENS]
    plan = make_plan(counts, threads=case.threads, dtype=case.dtype, tp=case.tp)
    outcome = answer(plan, opened.index, [Request(prompt, TOKENS)])
    found = generation_metrics(outcome.measured, outcome.rounds)
    return {key: found[key] for key in KEYS}


def without(cluster: Cluster) -> Cluster:
    """The same figures, and nothing beside them."""
    return replace(cluster, devices=tuple(replace(device, beside={}) for device in cluster.devices))


def one_round(opened: Opened, found: dict[Case, list[tuple[Metrics, Metrics, Metrics]]]) -> None:
    for ranks in sorted({case.ranks for case in CASES}):
        cluster = plait.probe(ranks).cluster
        for case in (case for case in CASES if case.ranks == ranks):
            said, counts = predicted(cluster, opened, case)
            bare, _ = predicted(without(cluster), opened, case)
            found.setdefault(case, []).append((bare, said, measured(opened, case, counts)))


def rows(found: dict[Case, list[tuple[Metrics, Metrics, Metrics]]], key: str, factor: float) -> list[list[object]]:
    """Middles of the rounds, and of the rounds' differences."""
    made: list[list[object]] = []
    for case, rounds in found.items():
        middles = [factor * statistics.median(side[key] for side in sides) for sides in zip(*rounds, strict=True)]
        offs = [100 * statistics.median(one[at][key] / one[2][key] - 1 for one in rounds) for at in (0, 1)]
        made.append([case.name, *middles, *offs])
    return made


def main() -> None:
    opened, found = demo(), dict[Case, list[tuple[Metrics, Metrics, Metrics]]]()
    for _ in range(ROUNDS):
        one_round(opened, found)
    decode, first = rows(found, "decode_tokens_per_s", 1.0), rows(found, "ttft_s", 1e3)
    worst = max(abs(float(str(row[5]))) for row in decode + first)
    headings = ["without", "with", "measured", "off % without", "off % with"]
    sections = [
        "## A plan from a probe against runs",
        f"`plait probe`, `plait plan` with what it found, and a run, in turns; the middle of {ROUNDS} rounds, "
        f"{PROMPT_TOKENS} tokens of prompt, {TOKENS} of answer.\nPredicted without and with what operations take "
        "beside FLOP and bytes (decision 0028).",
        table(["decode tokens/s", *headings], decode),
        table(["first token, ms", *headings], first),
        f"Worst with: {verdict(worst, 25, ' %', at_most=True)}.",
    ]
    sys.stdout.write("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
