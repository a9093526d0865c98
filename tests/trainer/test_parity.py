"""A step on any mesh has the loss, norm, gradients and updated weights of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.spec.model import ModelSpec
from plait.trainer.settings import Rate, Settings

from .meshes import SGD, Mesh, alone, batch_of, error_of, tiny, train, worst

BOUND = 1e-10

GPT = {"norm": "layer", "mlp": "plain", "activation": "gelu", "rope": None}
GPT |= {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
OLMO = {"norm_placement": "post", "qk_norm": "full"}
QWEN = {"qk_norm": "head", "qkv_bias": True}

MESHES: dict[str, tuple[Mesh, dict[str, Any]]] = {
    "one rank": (Mesh(micro_batches=3, micro_batch=2), {}),
    "dp": (Mesh(dp=3, buckets=3), {}),
    "dp, one bucket": (Mesh(dp=2, buckets=1), {"tied": True}),
    "pp, gpipe": (Mesh(pp=3, schedule="gpipe", micro_batches=4), {}),
    "pp, layerwise": (Mesh(pp=2, schedule="layerwise", virtual=2), {}),
    "tp": (Mesh(tp=3), QWEN),
    "tp, sequence, unequal": (Mesh(tp=3, sequence=True, shares=(1, 2, 3)), OLMO),
    "braid": (Mesh(dp=2, pp=2, tp=2), {"tied": True}),
    "braid, sequence, zero": (Mesh(dp=2, pp=2, tp=2, sequence=True, zero=1), {"tied": True, **GPT}),
    "zero, one bucket": (Mesh(dp=3, zero=1, buckets=1), QWEN),
    "zero, buckets": (Mesh(dp=3, pp=2, zero=1, buckets=3, cut=(3, 1)), {"tied": True}),
    "interleaved": (Mesh(dp=2, pp=2, schedule="interleaved", virtual=2, micro_batches=3), {"tied": True}),
    "zb-h1": (Mesh(dp=2, pp=2, schedule="zb-h1", micro_batches=3, zero=1), {}),
    "zb-h2": (Mesh(pp=4, schedule="zb-h2", micro_batches=5), {}),
    "zb-v, tied": (Mesh(dp=2, pp=2, schedule="zb-v", virtual=2, micro_batches=3), {"tied": True}),
    "zb-v, tied, no replicas": (Mesh(pp=2, schedule="zb-v", virtual=2, micro_batches=3), {"tied": True}),
    "zb-v, tied, zero": (Mesh(dp=2, pp=2, tp=2, schedule="zb-v", virtual=2, zero=1), {"tied": True}),
    "dualpipe-v": (Mesh(dp=2, pp=2, schedule="dualpipe-v", virtual=2, micro_batches=5), {"tied": True}),
    "one position, two tied stages": (Mesh(dp=2, schedule="interleaved", virtual=2), {"tied": True}),
    "selective": (Mesh(dp=2, pp=2, recompute="selective"), {}),
    "positions outermost": (Mesh(dp=2, pp=2, tp=2, zero=1, order=(0, 1, 4, 5, 2, 3, 6, 7)), {"tied": True}),
    "replicas in any order": (Mesh(dp=3, pp=2, zero=1, order=(4, 1, 0, 5, 2, 3)), {"tied": True}),
    "full": (Mesh(dp=2, pp=2, tp=2, recompute="full", zero=1), {}),
}


@pytest.mark.parametrize("name", sorted(MESHES))
def test_a_mesh_equals_one_process(name: str) -> None:
    mesh, changes = MESHES[name]
    assert error_of(mesh, tiny(4, **changes)) < BOUND


def test_three_steps_of_everything_at_once() -> None:
    mesh = Mesh(dp=2, pp=2, tp=2, zero=1, recompute="full", sequence=True, micro_batches=3)
    told = Settings(
        Rate(0.1, "cosine", warmup=1, steps=3),
        optimizer="sgd",
        momentum=0.9,
        weight_decay=0.1,
        clip=0.5,
        frozen=("layers.1.*",),
        dropout=0.2,
        seed=5,
        check_every=1,
    )
    batches = [batch_of(mesh.sequences, step, ignored=0.5) for step in range(3)]
    assert error_of(mesh, tiny(5, tied=True), told, batches) < BOUND


def test_adamw_is_torchs_over_a_mesh() -> None:
    """Of its parameters float64 keeps 1e-10 only while no gradient is near zero: Adam divides by its size."""
    told = Settings(Rate(0.01, warmup=2), weight_decay=0.1, clip=1.0, eps=1e-3, check_every=1)
    for zero in (0, 1):
        mesh = Mesh(dp=2, pp=2, zero=zero)
        batches = [batch_of(mesh.sequences, step) for step in range(4)]
        assert error_of(mesh, tiny(4, tied=True), told, batches) < BOUND


def test_zero_gives_the_same_bits() -> None:
    spec, kept = tiny(4, tied=True), []
    for zero in (0, 1):
        ranks = train(Mesh(dp=3, pp=2, zero=zero), spec)
        kept.append([[step.weights for step in steps] for steps in ranks])
    for ours, theirs in zip(*kept, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("frozen", [("layers.*",), ("embed.weight", "*.k.*"), ("*norm*", "head.*", "layers.3.*")])
def test_what_is_frozen_stays(frozen: tuple[str, ...]) -> None:
    """Also all of a stage, and a tied embedding: nothing is reduced of it, and the rest goes on."""
    told = Settings(Rate(0.05), optimizer="sgd", weight_decay=0.1, frozen=frozen, check_every=1)
    for mesh in (Mesh(dp=2, pp=4, zero=1), Mesh(dp=2, pp=2, tp=2, buckets=1)):
        spec = tiny(4, tied="head.*" not in frozen, norm="layer")
        assert error_of(mesh, spec, told) < BOUND


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_dtypes(dtype: str) -> None:
    """bfloat16: masters are float32, and a mesh is off float64 no more than twice what one process is."""
    mesh, spec = Mesh(dp=2, pp=2, zero=1, dtype=dtype), tiny(4, tied=True)
    batches = [batch_of(mesh.sequences, step) for step in range(2)]
    exact, ours = alone(spec, SGD, batches), train(mesh, spec, SGD, batches)
    if dtype == "float32":
        assert worst(mesh, spec, ours, exact) < 1e-4
    else:
        one = train(Mesh(micro_batches=4, dtype=dtype), spec, SGD, batches)
        rounding = worst(Mesh(), spec, one, exact)
        assert worst(mesh, spec, ours, exact) < 2 * rounding < 1


@pytest.mark.soak
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_mesh_equals_one_process(data: st.DataObject) -> None:
    mesh, spec = drawn(data)
    told = Settings(
        Rate(0.05),
        optimizer="sgd",
        momentum=data.draw(st.sampled_from((0.0, 0.9))),
        weight_decay=data.draw(st.sampled_from((0.0, 0.1))),
        clip=data.draw(st.sampled_from((None, 0.1, 100.0))),
        frozen=data.draw(st.sampled_from(((), ("embed.weight",), ("*norm*", "layers.0.*"), ("*.q.*",)))),
        dropout=data.draw(st.sampled_from((0.0, 0.1))),
        check_every=1,
    )
    ignored = data.draw(st.sampled_from((0.0, 0.3, 0.9)))
    batches = [batch_of(mesh.sequences, step, ignored) for step in range(2)]
    try:
        mesh.plan(spec)
    except PlanError:
        assume(False)
    assert error_of(mesh, spec, told, batches) < BOUND


def drawn(data: st.DataObject) -> tuple[Mesh, ModelSpec]:
    schedule, virtual = data.draw(
        st.sampled_from(
            [("gpipe", 1), ("1f1b", 1), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2), ("dualpipe-v", 2)]
            + [("interleaved", virtual) for virtual in (1, 2, 3)]
            + [("layerwise", 1), ("layerwise", 2)]
        )
    )
    pp, tp, dp = data.draw(st.sampled_from([(pp, tp, dp) for pp in (1, 2, 3) for tp in (1, 2, 3) for dp in (1, 2, 3)]))
    assume(pp * tp * dp <= 8)
    mesh = Mesh(
        dp,
        pp,
        tp,
        schedule,
        data.draw(st.integers(1, 5)),
        data.draw(st.integers(1, 2)),
        virtual,
        data.draw(st.integers(0, 1)),
        data.draw(st.sampled_from(("none", "selective", "full"))),
        data.draw(st.booleans()) and tp > 1,
        buckets=data.draw(st.integers(1, 3)),
    )
    changes = data.draw(st.sampled_from(({}, GPT, OLMO, QWEN)))
    return mesh, tiny(pp * virtual + data.draw(st.integers(0, 2)), tied=data.draw(st.booleans()), **changes)
