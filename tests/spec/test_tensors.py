"""Stages share a model's tensors out: whatever the cut, each is held exactly once, but a tied embedding."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from plait.spec.model import ModelSpec, Rope
from plait.spec.tensors import layer_tensors, model_tensors, stage_tensors


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    layers, kv_heads = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    flag = st.booleans()
    return ModelSpec(
        name="m",
        family="llama",
        layers=layers,
        hidden=draw(st.integers(1, 40)),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 8)),
        intermediate=draw(st.integers(1, 40)),
        vocab=draw(st.integers(1, 40)),
        max_positions=16,
        norm_eps=1e-5,
        rope=draw(st.sampled_from([None, Rope(10_000.0, 2)])),
        windows=(None,) * layers,
        norm=draw(st.sampled_from(["rms", "layer"])),
        mlp=draw(st.sampled_from(["gated", "plain"])),
        qkv_bias=draw(flag),
        output_bias=draw(flag),
        mlp_bias=draw(flag),
        qk_norm=draw(st.sampled_from([None, "head", "full"])),
        tied=draw(flag),
    )


@st.composite
def cuts(draw: st.DrawFn, layers: int) -> list[tuple[int, int]]:
    inner = draw(st.sets(st.integers(1, layers - 1))) if layers > 1 else set()
    ends = [0, *sorted(inner), layers]
    return list(itertools.pairwise(ends))


@given(st.data(), specs())
def test_any_cut_holds_every_tensor_once(data: st.DataObject, spec: ModelSpec) -> None:
    cut = data.draw(cuts(spec.layers))
    held = [name for first, end in cut for name in stage_tensors(spec, first, end)]
    twice = {name for name in held if held.count(name) > 1}
    assert set(held) == set(model_tensors(spec))
    assert twice == ({"embed.weight"} if spec.tied and len(cut) > 1 else set())
    whole = model_tensors(spec)
    assert all(whole[name] == shape for part in cut for name, shape in stage_tensors(spec, *part).items())


@given(specs())
def test_every_layer_looks_the_same(spec: ModelSpec) -> None:
    for layer in range(spec.layers):
        inner = stage_tensors(replace(spec, layers=spec.layers + 2), layer + 1, layer + 2)
        assert inner == {f"layers.{layer + 1}.{name}": shape for name, shape in layer_tensors(spec).items()}
