"""Does a split compute what one process computes? Logits compared, token by token, before anybody trusts the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from plait.errors import ParityError
from plait.generation.answer import Answer, Launch, Request, answer
from plait.generation.launch import ProcessRanks
from plait.generation.machine import Machine, ThisMachine
from plait.planner.capacity import require_memory
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.weights.index import WeightsIndex

FLOAT32_BOUND = 1e-5
"""The largest error of a logit, as a share of the largest logit: the project's parity bound."""

ROUNDING_FACTOR = 2.0
"""How far a split with bfloat16 stages may be off, in terms of what one bfloat16 process is off by itself."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The largest error of the tokens compared, and the bound it was held against.

    `compared` tokens of `tokens`: where the two runs draw another token, what follows cannot be compared.
    """

    error: float
    bound: float
    compared: int
    tokens: int

    def __str__(self) -> str:
        return (
            f"logits equal one process's: largest error {self.error:.2g} of the largest logit, bound {self.bound:g}, "
            f"{self.compared} of {self.tokens} tokens compared"
        )


def verify(
    plan: Plan,
    index: WeightsIndex,
    prompt: Sequence[int],
    tokens: int = 4,
    launch: Launch = ProcessRanks,
    reference: Launch = ProcessRanks,
    machine: Machine | None = None,
) -> Verdict:
    """Run `prompt` through the plan and through one float32 process, greedily, and compare the logits.

    The error is max|a − b| ÷ max|b| of a token's logits. With bfloat16 stages the bound is what one bfloat16 process
    is off itself, doubled. `machine`: what the plan runs on; the one process runs here.

    Errors: ParityError where the split is outside the bound, CapacityError where one process cannot hold the model.
    """
    request = Request(tuple(prompt), min(tokens, plan.context - len(prompt)), logits=True)

    def run(one: Plan, start: Launch, where: Machine) -> Answer:
        require_memory(one, index.spec, where.free_bytes(one.layout))
        return answer(one, index, [request], start).answers[0]

    here = ThisMachine()
    whole = run(_one_process(plan, "float32"), reference, here)
    bound = FLOAT32_BOUND
    if any(stage.dtype == "bfloat16" for stage in plan.layout.stages):
        rounding = _error(run(_one_process(plan, "bfloat16"), reference, here), whole)[0]
        bound = max(bound, ROUNDING_FACTOR * rounding)
    error, compared = _error(run(plan, launch, machine or here), whole)
    if not error <= bound:  # not a number is outside, too
        raise ParityError(
            f"the split's logits differ from one process's by {error:.2g} of the largest, "
            f"and {bound:.2g} is the bound: its text cannot be trusted"
        )
    return Verdict(error, bound, compared, len(whole.tokens))


def _one_process(plan: Plan, dtype: str) -> Plan:
    end = plan.layout.stages[-1].layers[1]
    threads = max(stage.threads for stage in plan.layout.stages)
    layout = Layout({"pp": 1}, (Stage((0, end), (0,), dtype, dtype, threads),), plan.layout.link_capacity)
    return replace(plan, layout=layout, micro_batches=1)


def _error(mine: Answer, reference: Answer) -> tuple[float, int]:
    """The largest error over the tokens before which both drew the same, and how many these are."""
    errors = []
    for number, (a, b) in enumerate(zip(map(_logits, mine.logits), map(_logits, reference.logits), strict=False)):
        if mine.tokens[:number] != reference.tokens[:number]:
            break
        errors.append(float(np.abs(a - b).max() / np.abs(b).max()))
    return float(np.max(errors)), len(errors)


def _logits(values: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(values, np.float32)  # [vocab]
