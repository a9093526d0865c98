"""All bytes of a step by axis, as the ranks of a mesh really send them, against the rule; over threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.comm.contract import Endpoint
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import step_bytes
from plait.spec.model import ModelSpec
from plait.spec.tensors import Shape
from plait.tracer.tracer import Tracer
from plait.trainer.batch import Batch
from plait.trainer.rank import TrainingRank
from tests.comm.ranks import ThreadRanks

from .meshes import LENGTH, SGD, Mesh, batch_of, tensors_of, tiny

QUIET = replace(SGD, check_every=0)


def sent(
    endpoint: Endpoint, plan: TrainingPlan, spec: ModelSpec, tensors: Mapping[str, Tensor], batch: Batch, buckets: int
) -> dict[str, int]:
    """What one rank sends in a step: to its tensor group, in messages, and all the rest."""

    def whole(name: str, shape: Shape) -> Tensor:
        return tensors[name]

    tracer = Tracer(endpoint.rank)
    rank = TrainingRank(plan, spec, QUIET, endpoint, whole, buckets=buckets, observer=tracer)
    peers = [peer for peer in range(endpoint.size) if peer != endpoint.rank]
    before = {peer: endpoint.traffic(peer).payload_bytes for peer in peers}
    rank.step(0, batch)
    after = {peer: endpoint.traffic(peer).payload_bytes - size for peer, size in before.items()}
    group = plan.layout.tensor_group(plan.layout.stage_of(endpoint.rank), endpoint.rank)
    tensor = sum(size for peer, size in after.items() if peer in group)
    messages = sum(event[4] for event in tracer.events if event[0].kind.sends)
    return {"dp": sum(after.values()) - tensor - messages, "pp": messages, "tp": tensor}


def measured(mesh: Mesh, spec: ModelSpec) -> dict[str, int]:
    plan = mesh.plan(spec)
    given = {"tensors": tensors_of(spec), "batch": batch_of(mesh.sequences, 0), "buckets": mesh.buckets}
    ranks = ThreadRanks().run(sent, plan.layout.ranks, plan=plan, spec=spec, **given)
    return {axis: sum(rank[axis] for rank in ranks) for axis in ("dp", "pp", "tp")}


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(),
        Mesh(dp=2),
        Mesh(dp=3, zero=1, buckets=3),
        Mesh(pp=3, micro_batches=4),
        Mesh(tp=2, sequence=True),
        Mesh(dp=2, pp=2, tp=2, zero=1, dtype="bfloat16", recompute="full"),
        Mesh(dp=2, pp=2, virtual=2, schedule="zb-v", dtype="float32"),
        Mesh(dp=2, pp=2, virtual=2, schedule="interleaved", tp=3, sequence=True),
        Mesh(pp=1, virtual=2, schedule="interleaved", tp=2),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("tied", [False, True])
def test_every_axis(mesh: Mesh, tied: bool) -> None:
    spec = tiny(tied=tied)
    assert measured(mesh, spec) == step_bytes(spec, mesh.plan(spec), mesh.buckets)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_mesh(data: st.DataObject) -> None:
    dp, pp, tp = (data.draw(st.integers(1, most)) for most in (3, 2, 2))
    schedule = data.draw(st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved"]))
    mesh = Mesh(
        dp,
        pp,
        tp,
        schedule,
        micro_batches=data.draw(st.integers(1, 3)),
        micro_batch=data.draw(st.integers(1, 2)),
        virtual=2 if schedule in ("zb-v", "interleaved") else 1,
        zero=data.draw(st.integers(0, 1)),
        sequence=tp > 1 and data.draw(st.booleans()),
        dtype=data.draw(st.sampled_from(["float64", "float32", "bfloat16"])),
        buckets=data.draw(st.integers(1, 4)),
    )
    spec = tiny(kv_heads=data.draw(st.sampled_from([1, 2, 4])), tied=data.draw(st.booleans()))
    assert measured(mesh, spec) == step_bytes(spec, mesh.plan(spec), mesh.buckets)


def test_known_values() -> None:
    """2 stages, 2 micro-batches of 6 tokens of 24 numbers of 8 bytes, there and back; and what the norm tells."""
    spec = tiny()
    mesh = Mesh(pp=2)
    assert LENGTH == 6
    assert step_bytes(spec, mesh.plan(spec)) == {"dp": 2 * 7 * 8, "pp": 2 * 2 * 6 * 24 * 8, "tp": 0}
    # tied: an embedding of 97 × 24 besides, from each end to the other
    tied = step_bytes(tiny(tied=True), mesh.plan(tiny(tied=True)))
    assert tied["dp"] == 2 * 7 * 8 + 2 * 97 * 24 * 8
