"""Seconds and bytes of generation, against arithmetic done by hand beside each test and the public planning cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.memory import kv_bytes, weights_bytes
from plait.costs.protocol import FREE, Exchange, LinkCost, Running
from plait.costs.serving import ServingModel
from plait.costs.shares import rank_shares
from plait.costs.tensor_group import Wires, head_shares
from plait.errors import PlanError, SpecError
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row
from plait.schedules.generation import make_round
from plait.simulator.simulate import simulate
from plait.spec.cluster import Cluster, Device, Host, Link, Network, Wire
from plait.spec.model import Experts, LatentAttention, ModelSpec, Rope

LLAMA_70B = ModelSpec(
    "llama3-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, 131072, 1e-5, Rope(5e5, 128), (None,) * 80
)  # fmt: skip
SMOL = ModelSpec(
    "smol", "llama", 30, 576, 9, 3, 64, 1536, 49152, 2048, 1e-5, Rope(1e4, 64), (None,) * 30, tied=True
)  # fmt: skip
DECODING = MicroBatch((Row(0, 0, 0, 1, True),))
LAYER_70B = 8192 * (8192 + 1024 + 1024 + 8192) + 3 * 8192 * 28672 + 2 * 8192  # q k v o, gate up down, two norms


def cluster(
    bandwidths: dict[str, float], latency_s: float = 0.0, bandwidth: float = inf, flops: float = inf
) -> Cluster:
    """A device a host; the same link between any two."""
    names = list(bandwidths)
    return Cluster(
        tuple(Host(f"host-{name}") for name in names),
        tuple(Device(name, f"host-{name}", 24 * 10**9, {"bfloat16": flops}, bandwidths[name]) for name in names),
        tuple(Link(one, other, latency_s, bandwidth) for one in names for other in names if one != other),
    )


def decode_s(model: ServingModel, device: str, cached: int = 0) -> float:
    """One token of one user on one device."""
    layers = sum(model.layer_s(device, layer, 1, 1, cached) for layer in range(model.spec.layers))
    return model.first_s(device, 1, 1) + layers + model.last_s(device, 1, 1) + model.fixed_s(device)


def test_pure_bandwidth_arithmetic() -> None:
    """Case P1: 40 layers of 1 GB at 351.2 GB/s take 113.9 ms, and 10 of them on the slowest of the cut 28.5 ms."""
    hidden, layers = 4096, 40
    intermediate = round((1e9 / 2 - 4 * hidden * hidden) / 3 / hidden)
    spec = ModelSpec("p1", "llama", layers, hidden, 32, 32, 128, intermediate, 1, 64, 1e-5, None, (None,) * layers)
    model = ServingModel(spec, cluster({"d": 351.2e9}))
    assert model.weight_bytes(0) == pytest.approx(1e9, rel=1e-4)
    assert decode_s(model, "d") == pytest.approx(0.1139, rel=1e-3)
    assert sum(model.layer_s("d", layer, 1, 1, 0) for layer in range(10)) == pytest.approx(10 / 351.2, rel=1e-3)


def test_two_machines_of_a_textbook() -> None:
    """Case P8: 70B at 4.5 bits over two devices of 1 TB/s, 1 Gb/s and 100 µs: layer-wise about 40 ms a token.

    Tensor parallelism reads half as much on each, and pays 160 all-reduces of 16,384 bytes: 131 + 100 µs each. The
    embedding, which is cut over the vocabulary, adds one, and the candidates of both halves of the head a message.
    """
    model = ServingModel(LLAMA_70B, cluster({"a": 1e12, "b": 1e12}, 1e-4, 1e9 / 8), weights="q4_0")
    layerwise = decode_s(model, "a") + model.hand_over_s("a", "b", 1) + model.token_back_s("b", "a", 1)
    assert layerwise == pytest.approx((80 * LAYER_70B + 128256 * 8192) * 0.5625 / 1e12 + 2 * 1e-4 + 131e-6, rel=0.01)
    assert 0.038 < layerwise < 0.042
    found = model.stage_exchange(("a", "b"), (0, 80), DECODING)
    exchange = 161 * (1e-4 + 16384 / 125e6) + 1e-4 + 16 / 125e6
    assert found == Exchange(pytest.approx(exchange), 161 * 16384 + 16)
    halves = sum(model.layer_s("a", layer, 1, 1, 0, 0.5) for layer in range(80)) + model.last_s("a", 1, 1, 0.5)
    assert halves == pytest.approx(layerwise / 2, rel=0.02)
    assert halves + exchange > layerwise


def test_a_prompt_of_a_tensor_group_moves_all_its_activations() -> None:
    """Case P8: 160 all-reduces of 33.5 MB; each of two devices sends it to the other.

    The embedding's makes it 161, but the last layer sums only the one row that is sampled.
    """
    model = ServingModel(LLAMA_70B, cluster({"a": 1e12, "b": 1e12}, 1e-4, 1e9 / 8), weights="q4_0")
    size = 2048 * 8192 * 2
    assert size == pytest.approx(33.5e6, rel=0.002)
    found = model.stage_exchange(("a", "b"), (0, 80), MicroBatch((Row(0, 0, 0, 2048, True),)))
    seconds = 159 * (1e-4 + size / 125e6) + 2 * (1e-4 + 16384 / 125e6) + 1e-4 + 16 / 125e6
    assert found == Exchange(pytest.approx(seconds), 159 * size + 2 * 16384 + 16)


def test_a_faster_link_changes_the_answer() -> None:
    """Case P8: at 10 Gb/s and 30 µs tensor parallelism wins decoding."""
    model = ServingModel(LLAMA_70B, cluster({"a": 1e12, "b": 1e12}, 3e-5, 10e9 / 8), weights="q4_0")
    layerwise = decode_s(model, "a") + model.hand_over_s("a", "b", 1) + model.token_back_s("b", "a", 1)
    assert model.stage_s(("a", "b"), (0, 80), DECODING) < layerwise


def test_a_prompt_is_bound_by_computing() -> None:
    """2 FLOP a parameter and position, and 4 × heads × head size for each pair of positions: 512 × 513 ÷ 2 of them."""
    model = ServingModel(LLAMA_70B, cluster({"a": inf}, flops=1e14))
    matrices = LAYER_70B - 2 * 8192
    flops = 2 * 512 * matrices + 4 * 64 * 128 * 512 * 513 / 2
    assert model.layer_s("a", 0, 512, 1, 0) == pytest.approx(flops / 1e14)


def test_rows_read_the_weights_once_and_each_its_cache() -> None:
    model = ServingModel(LLAMA_70B, cluster({"a": 1e12}))
    one, eight = model.layer_s("a", 0, 1, 1, 0), model.layer_s("a", 0, 8, 8, 0)
    assert eight < 1.01 * one
    added = model.layer_s("a", 0, 8, 8, 4096) - eight
    assert added == pytest.approx(8 * 4096 * 2 * 8 * 128 * 2 / 1e12)
    assert model.kv_bytes(0, 8, 4096) == 8 * 4096 * 2 * 8 * 128 * 2


def test_a_window_is_all_that_a_position_sees() -> None:
    model = ServingModel(replace(LLAMA_70B, windows=(1024, None) * 40), cluster({"a": 1e12}))
    assert model.layer_s("a", 0, 1, 1, 8192) == model.layer_s("a", 0, 1, 1, 4096)
    assert model.layer_s("a", 1, 1, 1, 8192) > model.layer_s("a", 1, 1, 1, 4096)


def test_few_tokens_touch_few_experts() -> None:
    """64 experts, 2 a token: one token reads 2 of them; 8 read 64 (1 − (62/64)^8) = 14.36; very many read all."""
    experts = Experts(64, 2, 1024)
    spec = replace(LLAMA_70B, experts=experts, intermediate=0)
    model = ServingModel(spec, cluster({"a": 1e12}))
    one = 3 * 8192 * 1024 * 2 / 1e12
    base = model.layer_s("a", 0, 1, 1, 0)
    grown = model.layer_s("a", 0, 8, 8, 0) - base
    assert grown == pytest.approx((14.357 - 2) * one, rel=0.01)
    assert base < model.weight_bytes(0) / 1e12 / 5
    assert model.layer_s("a", 0, 4096, 4096, 0) > model.weight_bytes(0) / 1e12


def test_a_latent_cache_is_small_and_whole_on_every_rank() -> None:
    """DeepSeek-V3: 512 + 64 values a position, for 128 heads."""
    latent = LatentAttention(512, 64, 128, 128, 1536)
    spec = replace(LLAMA_70B, hidden=7168, heads=128, kv_heads=128, latent=latent)
    model = ServingModel(spec, cluster({"a": 1e12}))
    assert model.kv_bytes(0, 1, 1000) == 576 * 1000 * 2
    assert model.kv_bytes(0, 1, 1000, 0.125) == model.kv_bytes(0, 1, 1000)
    added = model.layer_s("a", 0, 1, 1, 1000) - model.layer_s("a", 0, 1, 1, 0)
    assert added == pytest.approx(576 * 1000 * 2 / 1e12)


def test_heads_are_dealt_by_speed() -> None:
    assert head_shares(SMOL, (1.0, 1.0)) == (5, 4)
    assert head_shares(SMOL, (2.0, 1.0)) == (6, 3)
    assert head_shares(SMOL, (1.0, 1.0, 1.0)) == (3, 3, 3)
    assert head_shares(LLAMA_70B, (1.0,) * 8) == (8,) * 8
    assert head_shares(SMOL, (1000.0, 1.0)) == (8, 1)


@pytest.mark.parametrize(
    "spec",
    [
        LLAMA_70B,
        replace(LLAMA_70B, experts=Experts(64, 2, 1024, 1, 2048, 3)),
        replace(LLAMA_70B, latent=LatentAttention(512, 64, 128, 128, 1536)),
    ],
)
def test_bytes_are_those_of_a_layout(spec: ModelSpec) -> None:
    """The same as `costs.memory` counts for a stage with everything, and the same sum over stages."""
    model = ServingModel(spec, cluster({"a": 1e12}))
    stage = Stage((0, 80), (0,), "bfloat16", "bfloat16")
    held = sum(model.weight_bytes(layer) for layer in range(80)) + model.first_bytes() + model.last_bytes()
    assert held == weights_bytes(stage, spec)
    assert sum(model.kv_bytes(layer, 4, 1000) for layer in range(80)) == kv_bytes(stage, spec, 4, 1000)


def test_more_devices_than_heads() -> None:
    with pytest.raises(PlanError) as raised:
        head_shares(SMOL, (1.0,) * 10)
    assert str(raised.value) == "smol has 9 heads, so a tensor group holds at most 9 devices, not 10"


def test_kv_heads_of_a_share_are_whole() -> None:
    """Case P7: 3 KV heads over 2 devices: 5 query heads need 2 of them, and 4 need 2."""
    model = ServingModel(SMOL, cluster({"a": 1e12}), "bfloat16")
    assert model.kv_bytes(0, 1, 100, 5 / 9) == model.kv_bytes(0, 1, 100, 4 / 9) == 2 / 3 * model.kv_bytes(0, 1, 100)
    halves = model.weight_bytes(0, 5 / 9) + model.weight_bytes(0, 4 / 9)
    twice = 2 * 576 + 2 * 64 * 576  # norms, and the KV head that both need
    column = 3 * 576  # 5/9 and 4/9 of 1536 are both rounded up
    assert halves == model.weight_bytes(0) + 2 * (twice + column)


def test_a_device_without_heads_does_its_part_of_the_rest() -> None:
    """Ten devices for 9 heads: the last one has no attention and no cache, and a tenth of MLP and vocabulary."""
    model = ServingModel(SMOL, cluster(dict.fromkeys("abcdefghij", 1e10)), "bfloat16")
    *_, last = rank_shares(SMOL, 10)
    assert model.weight_bytes(0, last) == 2 * (3 * 154 * 576 + 2 * 576)
    assert model.kv_bytes(0, 1, 100, last) == 0
    assert model.layer_s("a", 0, 1, 1, 5000, last) == model.layer_s("a", 0, 1, 1, 0, last)
    assert model.layer_s("a", 0, 1, 1, 0, last) == pytest.approx(model.weight_bytes(0, last) / 1e10, rel=0.04)
    seconds = model.stage_s("abcdefghij", (0, 30), DECODING)
    fullest = rank_shares(SMOL, 10)[0]
    alone_s = model.first_s("a", 1) + model.last_s("a", 1, 1, fullest) + 30 * model.layer_s("a", 0, 1, 1, 0, fullest)
    assert seconds == pytest.approx(alone_s + model.fixed_s("a"))


def test_gathers_and_scatters_pick_the_way() -> None:
    """Small: at once, 3 messages through each device's wire.

    On two hosts that share their way out, each sends 4 pieces across at once, and in a ring 1 in each of 3 steps.
    """
    wires = Wires(cluster(dict.fromkeys("abcd", 1.0), 1e-3, 1e6))
    assert wires.spread("abcd", 100) == Exchange(pytest.approx(1e-3 + 300 / 1e6), 300)
    assert wires.spread("a", 100) == Exchange()
    hosts = tuple(Host(f"h{i}") for i in range(2))
    devices = tuple(Device(f"d{i}", f"h{i // 2}", 1, {"bfloat16": 1.0}, 1.0) for i in range(4))
    wires = Wires(Cluster(hosts, devices, network=Network(Wire(0.0, 1e12), Wire(0.0, 1e6, 1e6))))
    assert wires.spread(("d0", "d1", "d2", "d3"), 1e6) == Exchange(pytest.approx(3.0), 3_000_000)


def test_sequence_of_a_group_scatters_and_gathers() -> None:
    """5 rows of 1152 bytes over two devices, 3 and 2: a scatter sends the other's rows, a gather one's own."""
    model = ServingModel(SMOL, cluster({"a": 1e12, "b": 1e12}, 1e-4, 1e8))
    found = model.layer_exchange("ab", 0, 5, 1, sequence=True)
    assert found.by_rank(2) == (2 * (3 + 2) * 1152,) * 2
    assert found.seconds == pytest.approx(4 * (1e-4 + 3 * 1152 / 1e8))
    entry = model.entry_exchange("ab", 5, is_first=True, sequence=True)
    assert entry == Exchange(pytest.approx(1e-4 + 3 * 1152 / 1e8), 3 * 1152, (2 * 1152, 3 * 1152))
    assert model.entry_exchange("ab", 5, is_first=False, sequence=True) == Exchange()
    assert model.entry_exchange("ab", 5, is_first=False).by_rank(2) == (3 * 1152, 2 * 1152)


def test_all_reduce_picks_the_way() -> None:
    """Small: at once, 3 messages through each device's wire. Large: two steps of a quarter each."""
    wires = Wires(cluster(dict.fromkeys("abcd", 1.0), 1e-3, 1e6))
    assert wires.all_reduce("abcd", 100) == Exchange(1e-3 + 300 / 1e6, 300)
    assert wires.all_reduce("abcd", 1e6) == Exchange(2e-3 + 1.5, 1_500_000)
    assert wires.all_reduce("a", 1e6) == Exchange()


def test_all_reduce_over_hosts_shares_their_way_out() -> None:
    """4 devices on 2 hosts that send 1 MB/s each way: the ring crosses once, 6 steps of a quarter."""
    hosts = tuple(Host(f"h{i}") for i in range(2))
    devices = tuple(Device(f"d{i}", f"h{i // 2}", 1, {"bfloat16": 1.0}, 1.0) for i in range(4))
    network = Network(Wire(0.0, 1e12), Wire(0.0, 1e6, 1e6))
    wires = Wires(Cluster(hosts, devices, network=network))
    assert wires.all_reduce(("d0", "d1", "d2", "d3"), 1e6).seconds == pytest.approx(1.5)
    assert wires.all_reduce(("d0", "d1"), 1e6).seconds == pytest.approx(1e-6)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_simulator_adds_up_what_the_model_says(stages: int) -> None:
    names = "abc"[:stages]
    model = ServingModel(SMOL, cluster({"a": 1e10, "b": 2e10, "c": 3e10}, 1e-4, 1e8))
    cut = [(10 * i, 10 * i + 10) for i in range(stages - 1)] + [(10 * stages - 10, 30)]
    layout = Layout(
        {"pp": stages},
        tuple(Stage(cut[i], (i,), "bfloat16", "bfloat16", host=names[i], devices=(names[i],)) for i in range(stages)),
    )
    work = (MicroBatch((Row(0, 0, 99, 1, True),)),)
    timeline = simulate(layout, [make_round(0, stages, work, (), "layerwise")], model.costs(), SMOL)
    expected = model.first_s("a", 1) + model.last_s(names[-1], 1, 1)
    for name, (first, end) in zip(names, cut, strict=True):
        expected += sum(model.layer_s(name, layer, 1, 1, 99) for layer in range(first, end))
    for one, other in pairwise(names):
        expected += model.hand_over_s(one, other, 1)
    forwards = [span for span in timeline.spans if span.action.kind is Kind.FORWARD]
    assert max(span.end_s for span in forwards) == pytest.approx(expected)


def test_a_tensor_stage_waits_for_its_slowest_device_and_exchanges() -> None:
    model = ServingModel(SMOL, cluster({"a": 1e10, "b": 2e10}, 1e-4, 1e8))
    stage = Stage((0, 30), (0, 1), "bfloat16", "bfloat16", devices=("a", "b"), shares=(3, 6))
    layout = Layout({"tp": 2}, (stage,))
    work = MicroBatch((Row(0, 0, 99, 1, True),))
    costs = model.costs()
    exchange = costs.exchange(layout, 0, work, Kind.FORWARD)
    assert exchange.seconds == pytest.approx(61 * (1e-4 + 1152 / 1e8) + 1e-4 + 16 / 1e8)
    assert exchange == (exchange.seconds, 61 * 576 * 2 + 16, ())
    alone = [
        model.first_s(name, 1)
        + model.last_s(name, 1, 1, share)
        + sum(model.layer_s(name, layer, 1, 1, 99, share) for layer in range(30))
        for name, share in (("a", 1 / 3), ("b", 2 / 3))
    ]
    assert costs.compute_s(layout, 0, work) == pytest.approx(max(alone) + exchange.seconds)


def test_links_and_stages_on_one_device() -> None:
    costs = ServingModel(SMOL, cluster({"a": 1e10, "b": 2e10}, 1e-4, 1e8)).costs()
    stages = tuple(Stage((i, i + 1), (i,), devices=(name,)) for i, name in enumerate("aab"))
    layout = Layout({"pp": 3}, stages)
    assert costs.link(layout, 0, 1) == FREE
    assert costs.link(layout, 1, 2) == LinkCost(1e-4, 1e8, buffered=True)
    assert costs.speeds(layout, [Running(stage, 0) for stage in range(3)]) == (0.5, 0.5, 1.0)


def test_stages_without_devices() -> None:
    costs = ServingModel(SMOL, cluster({"a": 1e10})).costs()
    with pytest.raises(PlanError) as raised:
        costs.compute_s(Layout({"pp": 1}, (Stage((0, 30), (0,)),)), 0, MicroBatch((Row(0, 0, 0, 1, True),)))
    assert str(raised.value) == (
        "stage 0 has 1 ranks but names 0 devices of the cluster: each rank needs one to be simulated on"
    )


def test_unknown_names() -> None:
    one = cluster({"desk": 1e10})
    with pytest.raises(SpecError, match="unknown weight format 'q4_O'"):
        ServingModel(SMOL, one, weights="q4_O")
    with pytest.raises(SpecError, match="unknown dtype 'bfloat'"):
        ServingModel(SMOL, one, "bfloat")
    with pytest.raises(SpecError, match="no device 'dexk' in the cluster"):
        ServingModel(SMOL, one).layer_s("dexk", 0, 1, 1, 0)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 64),
    length=st.integers(1, 256),
    cached=st.integers(0, 4096),
    share=st.sampled_from([1.0, 0.5, 0.25]),
    bandwidth=st.floats(1e9, 1e13),
    flops=st.floats(1e11, 1e16),
)
def test_more_of_anything_is_never_slower(
    rows: int, length: int, cached: int, share: float, bandwidth: float, flops: float
) -> None:
    model = ServingModel(LLAMA_70B, cluster({"a": bandwidth, "b": 2 * bandwidth}, flops=flops))
    seconds = model.layer_s("a", 0, rows * length, rows, cached, share)
    assert model.layer_s("b", 0, rows * length, rows, cached, share) <= seconds
    assert model.layer_s("a", 0, rows * length, rows, cached, share / 2) <= seconds
    assert model.layer_s("a", 0, rows * length, rows, cached + 1, share) >= seconds
    assert model.layer_s("a", 0, rows * (length + 1), rows, cached, share) >= seconds
