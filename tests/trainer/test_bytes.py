"""What a step puts on the links stands in the spans of its actions, to the byte (`test_step_bytes` has the sums)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from plait.comm.contract import Endpoint
from plait.plans.action import Action, Kind
from plait.plans.training_exchanges import NORM_BYTES
from plait.trainer.rank import TrainingRank
from plait.trainer.settings import Rate, Settings
from tests.comm.ranks import ThreadRanks

from .meshes import Mesh, batch_of, tensors_of, tiny

TOLD = Settings(Rate(0.05), check_every=0)


@dataclass
class Seen:
    """An observer that adds up bytes by kind of action."""

    sent_bytes: Counter[Kind] = field(default_factory=Counter)

    def finished(
        self, action: Action, start: float, ready: float, end: float, size: int, exchanges: object = ()
    ) -> None:
        self.sent_bytes[action.kind] += size


def sent(mesh: Mesh, tied: bool) -> tuple[list[int], list[Counter[Kind]]]:
    """By rank, payload of one step on all links, and by kind of action as the observer was told."""
    spec = tiny(4, tied=tied)
    plan, tensors = mesh.plan(spec), tensors_of(spec)

    def program(endpoint: Endpoint) -> tuple[int, Counter[Kind]]:
        seen = Seen()
        rank = TrainingRank(
            plan, spec, TOLD, endpoint, lambda name, _: tensors[name], buckets=mesh.buckets, observer=seen, record=True
        )
        others = [other for other in range(endpoint.size) if other != endpoint.rank]
        before = sum(endpoint.traffic(other).payload_bytes for other in others)
        rank.step(0, batch_of(mesh.sequences, 0))
        return sum(endpoint.traffic(other).payload_bytes for other in others) - before, seen.sent_bytes

    found = ThreadRanks().run(program, plan.layout.ranks)
    return [total for total, _ in found], [seen for _, seen in found]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(dp=2, pp=2, tp=2, zero=1, sequence=True, dtype="bfloat16"),
        Mesh(dp=3, pp=2, schedule="zb-v", virtual=2, micro_batches=3, zero=1, dtype="float32"),
    ],
)
def test_spans_hold_all_that_is_sent_once(mesh: Mesh, tied: bool) -> None:
    totals, seen = sent(mesh, tied)
    assert [sum(counted.values()) for counted in seen] == totals
    ranks = len(totals)
    assert [counted[Kind.NORM] for counted in seen] == [(ranks - 1) * NORM_BYTES] * ranks
