"""A training step: parts against formulas, the closed form against the simulator, and what must not make it slower."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.profiles import Profile, profile_named
from plait.costs.protocol import Exchange
from plait.costs.training import Cut, Machine, StepEstimate, TrainingModel, exposed_messages, positions
from plait.planner.placement import training_layout
from plait.planner.step_times import hops
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch, Row
from plait.plans.split import Split, TrainingSetup
from plait.schedules.step import make_training_round
from plait.schedules.training import TRAINING_SCHEDULES
from plait.simulator.memory import memory_over_time
from plait.simulator.simulate import simulate
from plait.spec.cluster import Device, Network, Wire
from plait.spec.job import TrainingJob
from plait.spec.model import Experts
from plait.validator.published import Shape, even_cut, gpt

SPEC = gpt(Shape(hidden=1024, heads=16, layers=16, sequence=512, vocab=32000))
NETWORK = Network(Wire(3e-6, 300e9), Wire(5e-6, 25e9, 200e9))
DEVICE = Device("gpu", "host", 80 * 2**30, {"float16": 300e12, "float32": 20e12}, 2e12)
PLAIN = profile_named("plain").changed(hidden_reduction=0.0)
EXACT = {
    "matrix_share": 1.0, "tile_rows": 1.0, "tile_columns": 1.0, "units": 1.0, "started": 0.0, "inner_half": 0.0,
    "attention_share": 1.0, "operation_s": 0.0, "launch_s": 0.0, "exchange_s": 0.0, "accumulated_bytes": 0.0,
    "within_share": 1.0, "between_share": 1.0, "stepped_bytes": 0.0, "hidden_backward": 0.0, "residue": {},
}  # fmt: skip
"""A profile that is its device's figures."""


def machine(hosts: int = 4, device: Device = DEVICE, network: Network = NETWORK) -> Machine:
    return Machine(device, 8, hosts, network)


def model(
    batch: int = 64, profile: Profile = PLAIN, hosts: int = 4, spec: object = SPEC, network: Network = NETWORK
) -> TrainingModel:
    job = TrainingJob(batch, 512, "float16", "unfused")
    return TrainingModel(spec, job, machine(hosts, network=network), profile)  # type: ignore[arg-type]


def setup(schedule: str = "1f1b", split: Split | None = None, **figures: object) -> TrainingSetup:
    given_ = {"micro_batch": 1, "micro_batches": 16, "fused_attention": False} | figures
    return TrainingSetup(split or Split(dp=4, pp=4), schedule, **given_)  # type: ignore[arg-type]


def laid_out(one: TrainingSetup, cut: Cut) -> Layout:
    devices = [f"d{rank}" for rank in range(one.split.ranks)]
    hosts = [f"h{rank // 8}" for rank in range(one.split.ranks)]
    return training_layout(one, cut, devices, "bfloat16", hosts)


def simulated_s(training: TrainingModel, one: TrainingSetup, cut: Cut) -> float:
    layout = laid_out(one, cut)
    rows = one.micro_batch
    work = [
        MicroBatch(tuple(Row(n * rows + row, row, 0, 512, False) for row in range(rows)))
        for n in range(one.micro_batches)
    ]
    step = make_training_round(0, layout, one, work)
    timeline = simulate(layout, [step], training.costs(one, cut), training.spec, replicas=False, slices=False)
    return max(span.end_s for span in timeline.spans)


def test_with_an_exact_profile_a_step_is_flops_over_flops() -> None:
    """One device, endless memory bandwidth: 6 FLOP a parameter and token, and attention; mfu 1."""
    device = replace(DEVICE, memory_bandwidth=1e18)
    job = TrainingJob(4, 512, "float16", "unfused")
    training = TrainingModel(SPEC, job, machine(1, device), PLAIN.changed(**EXACT))
    found = training.estimate(setup(split=Split(), micro_batches=4), even_cut(16, 1))
    tokens, h, vocab, layers = 4 * 512, 1024, 32000, 16
    flops = 72 * tokens * layers * h**2 * (1 + 512 / (6 * h) + vocab / (12 * layers * h))
    assert found.step_s == pytest.approx(flops / 300e12, rel=1e-5)
    assert found.mfu == pytest.approx(1, rel=1e-5)
    assert found.transfer_s == found.wait_s == found.residue_s == found.bubble == found.comm_bytes == 0


def test_full_recompute_adds_a_forward() -> None:
    training = model(profile=PLAIN.changed(launch_s=0.0))
    kept, again = (training.stage_times(setup(recompute=how), even_cut(16, 4))[1] for how in ("none", "full"))
    assert again.input_s - kept.input_s == pytest.approx(kept.forward_s)
    assert (again.forward_s, again.weight_s) == (kept.forward_s, kept.weight_s)


def test_selective_recompute_adds_attention_alone_and_nothing_where_it_is_fused() -> None:
    training = model(profile=PLAIN.changed(launch_s=0.0))

    def input_s(how: str, fused: bool) -> float:
        return training.stage_times(setup(recompute=how, fused_attention=fused), even_cut(16, 4))[1].input_s

    assert input_s("none", False) < input_s("selective", False) < input_s("full", False)
    assert input_s("selective", True) == input_s("none", True)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_bubble_by_its_formula(schedule: str) -> None:
    """(p - 1) / (m + p - 1) where nothing else takes time: the model without ends, links that are free."""
    free = Network(Wire(0.0, float("inf")), Wire(0.0, float("inf")))
    training = model(profile=PLAIN.changed(residue={}, stepped_bytes=0.0, reduction_s=0.0), network=free)
    training.spec = SPEC
    one = setup(schedule, Split(pp=4), micro_batches=16)
    found = training.estimate(one, even_cut(16, 4))
    times = training.stage_times(one, even_cut(16, 4))
    mean_s = sum(each.total_s for each in times) / 4
    assert found.wait_s == pytest.approx(3 * mean_s, rel=1e-9)
    assert found.step_s == pytest.approx(16 * max(each.total_s for each in times) + 3 * mean_s, rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "virtual", "within"),
    [("1f1b", 1, 0.02), ("gpipe", 1, 0.01), ("interleaved", 2, 0.02), ("zb-h1", 1, 0.02), ("zb-h2", 1, 0.02),
     ("zb-v", 2, 0.03), ("dualpipe-v", 2, 0.02), ("layerwise", 1, 0.01)],
)  # fmt: skip
@pytest.mark.parametrize("tp", [1, 4])
def test_the_closed_form_is_what_the_simulator_finds(schedule: str, virtual: int, within: float, tp: int) -> None:
    """Nothing of the reduction is hidden in the closed form here; the simulator hides what its timeline allows."""
    training = model(batch=32)
    one = setup(schedule, Split(dp=1, pp=4, tp=tp), virtual=virtual, micro_batches=32)
    cut = even_cut(16, 4 * virtual)
    found = training.estimate(one, cut)
    assert found.step_s - found.residue_s == pytest.approx(simulated_s(training, one, cut), rel=within)


@pytest.mark.parametrize(
    ("schedule", "virtual", "above"),
    [("1f1b", 1, 1e-4), ("gpipe", 1, 1e-4), ("interleaved", 2, 0.01), ("layerwise", 1, 1e-4), ("zb-h1", 1, 0.3),
     ("zb-h2", 1, 0.3), ("zb-v", 2, 0.2), ("dualpipe-v", 2, 0.2)],
)  # fmt: skip
def test_peak_memory_is_what_the_simulator_finds(schedule: str, virtual: int, above: float) -> None:
    """With a split backward the closed form counts what I has freed until W: it is an upper bound."""
    training = model(batch=32)
    one = setup(schedule, Split(pp=4, tp=2), virtual=virtual, micro_batches=16, micro_batch=2)
    cut = even_cut(16, 4 * virtual)
    layout = laid_out(one, cut)
    work = [MicroBatch((Row(n, 0, 0, 512, False),)) for n in range(16)]
    step = make_training_round(0, layout, one, work)
    costs = training.costs(one, cut)
    timeline = simulate(layout, [step], costs, SPEC, replicas=False, slices=False)
    curves = memory_over_time(timeline, [step], layout, costs)
    need = training.memory(one, cut)
    for position, rank in enumerate(sorted(curves)):
        assert 0.998 <= need[position] / curves[rank].peak_bytes <= 1 + above
    assert max(need) == pytest.approx(max(curve.peak_bytes for curve in curves.values()), rel=max(above, 0.002))


def test_parts_of_a_step_add_up() -> None:
    training = model(profile=profile_named("a100"))
    for one in (
        setup(split=Split(dp=2, pp=4, tp=2), micro_batches=16),
        setup("interleaved", Split(dp=2, pp=4), virtual=2, micro_batches=16, recompute="full"),
        setup(split=Split(dp=8), micro_batches=8, zero=1),
    ):
        found = training.estimate(one, even_cut(16, one.split.pp * one.virtual))
        parts = found.compute_s + found.transfer_s + found.wait_s + found.residue_s
        assert parts == pytest.approx(found.step_s, rel=1e-9)
        assert found.bubble == pytest.approx(found.wait_s / found.step_s)
        assert all(value >= 0 for value in found[:8])


def test_gradients_go_around_a_ring() -> None:
    """Two hosts, one rank of a group on each: 2 · (n - 1) / n of the gradients' bytes at a device's share."""
    profile = PLAIN.changed(**EXACT, reduced_bytes=4.0, reduction_s=0.0, hidden_reduction=0.0)
    free = Network(Wire(0.0, 1e30), Wire(0.0, 25e9, 200e9))
    training = model(profile=profile, hosts=2, network=free)
    one = setup(split=Split(dp=2, tp=8), micro_batches=32)
    cut = even_cut(16, 1)
    parameters = training._rank_parameters(one, cut)[0].dense
    assert training.tail_s(one, cut) == pytest.approx(2 * (1 / 2) * parameters * 4 / 25e9, rel=1e-6)


def test_zero_shards_the_optimizer_and_gathers() -> None:
    training = model(profile=PLAIN.changed(**{**EXACT, "stepped_bytes": 50.0, "memory_share": 1.0}))
    cut = even_cut(16, 1)
    whole, sharded = (training._tail(setup(split=Split(dp=8), micro_batches=8, zero=zero), cut) for zero in (0, 1))
    assert sharded.optimizer_s == pytest.approx(whole.optimizer_s / 8)
    assert sharded.gather_s > 0 == whole.gather_s
    assert sharded.reduced_bytes == pytest.approx(whole.reduced_bytes / 2)


def test_zero_2_reduces_every_micro_batch_and_zero_3_gathers_weights_twice() -> None:
    """Bytes a device sends, in parameters: 2 · 7/8 · (reduced + m times as much as it is said)."""
    training = model(profile=PLAIN.changed(**{**EXACT, "reduced_bytes": 4.0, "hidden_reduction": 0.0}))
    cut, count = even_cut(16, 1), 8
    bytes_, seconds = {}, {}
    for zero in (1, 2, 3):
        found = training.estimate(setup(split=Split(dp=8), micro_batches=count, zero=zero), cut)
        bytes_[zero], seconds[zero] = found.comm_bytes, found.step_s
    part = training._rank_parameters(setup(split=Split(dp=8)), cut)[0].dense * 7 / 8
    assert bytes_[1] == pytest.approx(part * (4 + 2))
    assert bytes_[2] == pytest.approx(part * (4 * count + 2))
    assert bytes_[3] == pytest.approx(part * (4 * count + 2 * 2 * count))
    assert seconds[1] < seconds[2] < seconds[3]


def test_messages_in_parts_are_shorter() -> None:
    """Scatter and gather: a rank sends 1 / tp of the activations to the other host, where the group gathers them."""
    one = setup(split=Split(pp=4, tp=8))
    parted, whole = (model(profile=PLAIN.changed(parted=parted)).hand_over_s(one) for parted in (True, False))
    rows, between, within = 512 * 1024 * 2, 25e9 * PLAIN.between_share, 300e9 * PLAIN.within_share
    assert whole == pytest.approx(5e-6 + rows / between)
    assert parted == pytest.approx(5e-6 + rows / 8 / between + 7 * 3e-6 + rows * 7 / 8 / within)
    assert model().hand_over_s(replace(one, sequence_split=True)) == pytest.approx(5e-6 + rows / 8 / between)
    assert model().hand_over_s(setup(split=Split(dp=4))) == 0


def test_a_pipeline_inside_a_host_uses_its_wire() -> None:
    one = setup(split=Split(pp=4))
    assert model(hosts=1).hand_over_s(one) == pytest.approx(3e-6 + 512 * 1024 * 2 / (300e9 * PLAIN.within_share))


def test_the_host_decides_for_small_layers_and_not_for_large_ones() -> None:
    def slowed(micro_batch: int) -> float:
        one = setup(split=Split(dp=8), micro_batch=micro_batch)
        slow, fast = (
            model(profile=PLAIN.changed(launch_s=launch)).times(one).before[1].forward_s for launch in (1e-4, 1e-9)
        )
        return slow / fast

    assert slowed(1) > 3
    assert slowed(64) < 1.05


def test_experts_are_exchanged_only_where_they_are_split() -> None:
    spec = replace(SPEC, experts=Experts(count=8, per_token=2, intermediate=2048, dense_layers=4))
    training = model(spec=spec)
    apart, together = (training.times(setup(split=Split(dp=8 // ep, ep=ep))) for ep in (8, 1))
    assert together.before[-1].forward_exchange_s == 0
    assert apart.before[4].forward_exchange_s == 0 < apart.before[5].forward_exchange_s
    sent = apart.before[5].forward_sent_bytes
    assert sent == pytest.approx(2 * 512 * 1024 * 2 * 2 * 7 / 8)  # there and back, two experts a token


def test_the_backward_hides_what_the_profile_says() -> None:
    one = setup(split=Split(dp=1, tp=8))
    bare, half = (model(profile=PLAIN.changed(hidden_backward=share)).times(one).before[1] for share in (0.0, 0.5))
    assert half.input_exchange_s == pytest.approx(bare.input_exchange_s / 2)
    assert half.forward_exchange_s == bare.forward_exchange_s
    assert half.input_sent_bytes == bare.input_sent_bytes


def test_notes() -> None:
    training = model(profile=profile_named("a100"))
    assert training.note == "not calibrated here: profile 'a100' extrapolates (hidden 1024 is outside 2304 to 25600)"
    wide = gpt(Shape(12288, 96, 16, 512, 51200))
    assert model(profile=profile_named("a100"), spec=wide).note.startswith("± 2.")
    llama = replace(wide, mlp="gated")
    note = TrainingModel(llama, TrainingJob(64, 512), machine(), profile_named("a100")).note
    assert note.endswith("extrapolates (fused attention: never compared, gated MLPs: never compared)")


@given(
    schedule=st.sampled_from(TRAINING_SCHEDULES),
    count=st.integers(1, 32),
    virtual=st.integers(1, 4),
    micro_batches=st.integers(1, 200),
)
def test_messages_are_counted_as_the_planner_counts_them(
    schedule: str, count: int, virtual: int, micro_batches: int
) -> None:
    if schedule == "layerwise":
        assert exposed_messages(schedule, count, virtual, micro_batches) == 2 * (
            count * virtual - 1
        ) * micro_batches * (count > 1)
    else:
        theirs = hops(schedule, np.float64(count), virtual, np.float64(micro_batches))  # type: ignore[arg-type]
        assert exposed_messages(schedule, count, virtual, micro_batches) == pytest.approx(float(theirs))


def test_costs_tell_the_kinds_apart() -> None:
    training = model()
    one = setup("zb-h1", Split(dp=2, pp=4, tp=2), micro_batches=16)
    cut = even_cut(16, 4)
    layout, costs = laid_out(one, cut), training.costs(one, cut)
    work = MicroBatch((Row(0, 0, 0, 512, False),))
    times = training.stage_times(one, cut)[1]
    kinds = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    expected = (times.forward_s, times.input_s + times.weight_s, times.input_s, times.weight_s)
    assert tuple(costs.compute_s(layout, 1, work, kind) for kind in kinds) == expected
    assert costs.exchange(layout, 1, work, Kind.BACKWARD_WEIGHT) == Exchange()
    assert costs.exchange(layout, 1, work, Kind.FORWARD).seconds > 0
    whole = costs.reduce_s(layout, 1, Kind.REDUCE_GRADIENTS)
    assert costs.reduce_s(layout, 1, Kind.REDUCE_GRADIENTS, 4) == pytest.approx(whole / 4)
    assert costs.reduce_s(layout, 1, Kind.GATHER_PARAMETERS) == 0
    hops = [costs.link(layout, position, position + 1).transfer_s(512 * 1024 * 2) for position in range(3)]
    assert hops[0] == hops[2] < hops[1] == pytest.approx(training.hand_over_s(one))  # two positions a host


def estimate(training: TrainingModel, one: TrainingSetup) -> StepEstimate:
    return training.estimate(one, even_cut(SPEC.layers, one.split.pp * one.virtual))


@settings(deadline=None, max_examples=40)
@given(
    pp=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2, 4, 8]),
    dp=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    zero=st.sampled_from([0, 1]),
    figure=st.sampled_from(["flops", "memory", "within", "between"]),
)
def test_a_faster_machine_is_never_slower(pp: int, tp: int, dp: int, recompute: str, zero: int, figure: str) -> None:
    one = setup(split=Split(dp=dp, pp=pp, tp=tp), micro_batches=64 // dp, recompute=recompute, zero=zero)
    device, network = DEVICE, NETWORK
    if figure == "flops":
        device = replace(device, flops={"float16": 600e12})
    elif figure == "memory":
        device = replace(device, memory_bandwidth=4e12)
    elif figure == "within":
        network = Network(Wire(1e-6, 600e9), network.between_hosts)
    else:
        network = Network(network.within_host, Wire(2e-6, 50e9, 400e9))
    job = TrainingJob(64, 512, "float16", "unfused")
    slow, fast = (TrainingModel(SPEC, job, made, PLAIN) for made in (machine(16), machine(16, device, network)))
    assert estimate(fast, one).step_s <= estimate(slow, one).step_s * (1 + 1e-12)


@given(st.sampled_from(["1f1b", "interleaved", "zb-v"]), st.integers(1, 6))
def test_every_stage_has_one_position(schedule: str, count: int) -> None:
    virtual = 1 if schedule == "1f1b" else 2
    held = positions(setup(schedule, Split(pp=count), virtual=virtual))
    assert sorted(stage for stages in held for stage in stages) == list(range(count * virtual))
    assert all(first < then for stages in held for first, then in pairwise(stages))
