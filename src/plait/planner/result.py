"""What the planner answers: the plan it chose, the others, what it rejected and why, and where the answer changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from plait.planner.cut import Cut
from plait.plans.plan import Plan
from plait.plans.split import Recompute, Split
from plait.plans.training import TrainingPlan

Objective = Literal["latency", "throughput", "ttft", "step"]
"""One user's time a token, all users' tokens a second, time to the first token, time of a training step."""


class DeviceMemory(NamedTuple):
    """What one device must hold, and what it has, in bytes."""

    device: str
    need_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to split, with what it takes.

    `kind` names the sort of split ("one device", "pipeline", "tensor", "data + pipeline", …): explanations hold the
    best of each. `devices`: the names of each stage's devices, rank by rank. `predicted` has the design's keys, in SI
    units, and is the simulator's where `simulated`. `memory`: of every device, or on clusters of equal devices of each
    position's first. `loses` says in words why another was chosen. `note` says how far the figures are calibrated.
    """

    kind: str
    split: Split
    cut: Cut
    devices: tuple[tuple[str, ...], ...]
    schedule: str
    micro_batches: int
    recompute: Recompute
    zero: int
    predicted: Mapping[str, float]
    memory: tuple[DeviceMemory, ...]
    plan: Plan | TrainingPlan
    simulated: bool = False
    loses: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Ways that cannot be: `count` candidates with these axes for one reason; `need` and `have` are its figures."""

    split: Mapping[str, int]
    count: int
    reason: str
    need: float
    have: float


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where another answer begins: `kind` wins from `value` of `quantity` (SI units) on; `text` says it in words."""

    kind: str
    quantity: str
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The planner's answer. `candidates` are ranked, the chosen one first; `reason` says why it wins."""

    objective: Objective
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    break_even: tuple[BreakEven, ...]
    reason: str


def choice_json(choice: Choice) -> dict[str, Any]:
    """The answer as plain values, the keys of `plait plan --json`."""
    return {
        "objective": choice.objective,
        "reason": choice.reason,
        "chosen": _candidate_json(choice.chosen),
        "candidates": [_candidate_json(candidate) for candidate in choice.candidates],
        "rejected": [
            {"split": dict(one.split), "count": one.count, "reason": one.reason, "need": one.need, "have": one.have}
            for one in choice.rejected
        ],
        "break_even": [
            {"kind": one.kind, "quantity": one.quantity, "value": one.value, "text": one.text}
            for one in choice.break_even
        ],
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    split = candidate.split
    axes = {"dp": split.dp, "pp": split.pp, "tp": split.tp, "ep": split.ep}
    return {
        "kind": candidate.kind,
        "split": axes if split.cp == 1 else {**axes, "cp": split.cp},
        "cut": [list(layers) for layers in candidate.cut],
        "devices": [list(names) for names in candidate.devices],
        "schedule": candidate.schedule,
        "micro_batches": candidate.micro_batches,
        "recompute": candidate.recompute,
        "zero": candidate.zero,
        "predicted": dict(candidate.predicted),
        "memory": [one._asdict() for one in candidate.memory],
        "simulated": candidate.simulated,
        "loses": candidate.loses,
        "note": candidate.note,
    }
