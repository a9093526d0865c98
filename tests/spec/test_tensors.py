"""Stages share a model's tensors out: whatever the cut, each is held exactly once, but a tied embedding."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from plait.spec.model import Experts, LatentAttention, ModelSpec, Rope
from plait.spec.presets import model_preset
from plait.spec.tensors import has_experts, layer_tensors, model_tensors, stage_tensors


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
        experts=draw(st.none() | st.builds(Experts, st.just(4), st.just(2), st.just(8), st.integers(0, 2), st.just(6))),
        latent=draw(st.none() | st.just(LatentAttention(8, 2, 4, 6)) | st.just(LatentAttention(8, 2, 4, 6, 10))),
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


def test_layers_differ_where_the_first_have_no_experts() -> None:
    spec = model_preset("deepseek-v3")
    assert [has_experts(spec, layer) for layer in range(5)] == [False, False, False, True, True]
    dense, mixed = layer_tensors(spec, 2), layer_tensors(spec, 3)
    mlp = {"gate.weight": (18432, 7168), "up.weight": (18432, 7168), "down.weight": (7168, 18432)}
    assert {name: shape for name, shape in dense.items() if name not in mixed} == mlp
    held = stage_tensors(spec, 2, 4)
    assert "layers.2.gate.weight" in held
    assert "layers.3.gate.weight" not in held
    assert held["layers.3.experts.up.weight"] == (256, 2048, 7168)


def test_experts_by_hand() -> None:
    """DeepSeek-V3: 256 routed experts of 2048 and one shared; Mixtral has no shared ones."""
    mixed = layer_tensors(model_preset("deepseek-v3"), 3)
    assert {name: shape for name, shape in mixed.items() if name.split(".")[0] in ("router", "experts", "shared")} == {
        "router.weight": (256, 7168),
        "experts.gate.weight": (256, 2048, 7168),
        "experts.up.weight": (256, 2048, 7168),
        "experts.down.weight": (256, 7168, 2048),
        "shared.gate.weight": (2048, 7168),
        "shared.up.weight": (2048, 7168),
        "shared.down.weight": (7168, 2048),
    }
    assert not [name for name in layer_tensors(model_preset("mixtral-8x7b")) if name.startswith("shared")]


def test_latent_attention_by_hand() -> None:
    """DeepSeek-V3: 128 heads of 128 + 64 for queries, 128 + 128 out of a latent of 512."""
    dense = layer_tensors(model_preset("deepseek-v3"), 0)
    assert {name: shape for name, shape in dense.items() if "norm" not in name and name[0] in "qkvo"} == {
        "q_down.weight": (1536, 7168),
        "q_up.weight": (24576, 1536),
        "kv_down.weight": (576, 7168),
        "kv_up.weight": (32768, 512),
        "o.weight": (7168, 16384),
    }
    spec = model_preset("deepseek-v3")
    assert spec.latent is not None
    at_once = layer_tensors(replace(spec, latent=replace(spec.latent, query_rank=None)), 0)
    assert at_once["q.weight"] == (24576, 7168)
    assert "q_down.weight" not in at_once
