"""Seconds of layers: sums over ranges, the ends of the model, and what each split changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.collectives import Group
from plait.costs.layer_times import Groups, Inside, LayerTimes, Times
from plait.costs.profiles import profile_named, rates
from plait.costs.topology import Fabric
from plait.spec.cluster import Device, Network, Wire
from plait.spec.model import Experts, ModelSpec
from plait.validator.published import Shape, gpt

PROFILE = profile_named("plain")
DEVICE = Device("gpu", "host", 80 * 2**30, {"float16": 300e12}, 2e12)
FABRIC = Fabric(8, Network(Wire(3e-6, 240e9), Wire(5e-6, 20e9)))
WIDE = gpt(Shape(hidden=4096, heads=32, layers=6, sequence=512, vocab=50000))
MIXED = replace(
    WIDE,
    windows=(None, 128) * 3,
    experts=Experts(count=8, per_token=2, intermediate=2048, shared=1, shared_intermediate=1024, dense_layers=2),
)
PLAIN_INSIDE = Inside(1, 1, 1, 2, "none", sequence_split=False, fused=True)


def layers_of(spec: ModelSpec = WIDE, inside: Inside = PLAIN_INSIDE, **figures: object) -> LayerTimes:
    groups = Groups(*(Group(size, FABRIC.within) for size in (inside.tp, inside.ep, inside.cp)))
    profile = PROFILE.changed(**figures)
    return LayerTimes(spec, 512, rates(DEVICE, profile, "float16"), groups, inside, 2)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_stages_add_up_to_the_model_however_it_is_cut(data: st.DataObject) -> None:
    inside = PLAIN_INSIDE._replace(
        tp=data.draw(st.sampled_from([1, 2, 4])), ep=data.draw(st.sampled_from([1, 4])), recompute="full"
    )
    times = layers_of(data.draw(st.sampled_from([WIDE, MIXED])), inside, micro_batch_s=1e-4)
    whole = times.stage((0, 6))
    ends = sorted({0, 6, *data.draw(st.lists(st.integers(1, 5), max_size=4))})
    cut = list(pairwise(ends))
    found = Times()
    for layers in cut:
        found = found.plus(times.stage(layers))
    beside = 1e-4 * (len(cut) - 1)
    assert found == pytest.approx(whole.plus(Times(beside, beside)), rel=1e-9)


def test_the_ends_hold_embedding_and_head() -> None:
    times = layers_of()
    layer = times.before[1]
    assert times.stage((1, 2)) == pytest.approx(layer)
    assert times.stage((0, 1)) == pytest.approx(layer.plus(times.first))
    assert times.stage((5, 6)) == pytest.approx(layer.plus(times.last))
    head_flops = 2 * 2 * 512 * 4096 * 50000
    assert times.last.forward_s > head_flops / 300e12
    assert times.first.input_s == 0  # nobody waits for the gradient of token ids


def test_every_kind_of_layer_has_its_own_seconds() -> None:
    times = layers_of(MIXED)
    each = [after.minus(before) for before, after in pairwise(times.before)]
    assert each[0].forward_s > each[1].forward_s  # a window of 128 attends to less
    assert each[2].forward_s != pytest.approx(each[0].forward_s)  # experts
    assert each[2] == pytest.approx(each[4])


@pytest.mark.parametrize(("tp", "most"), [(2, 2.0), (8, 8.0)])
def test_a_tensor_group_divides_work_and_adds_exchanges(tp: int, most: float) -> None:
    one, split = (layers_of(inside=PLAIN_INSIDE._replace(tp=size, micro_batch=8)).before[1] for size in (1, tp))
    assert one.forward_exchange_s == 0 < split.forward_exchange_s
    assert one.forward_s / most < split.forward_s - split.forward_exchange_s < one.forward_s
    sent = 2 * 2 * (tp - 1) / tp * 8 * 512 * 4096 * 2  # two all-reduces of [tokens, hidden]
    assert split.forward_sent_bytes == pytest.approx(sent)


def test_sequence_split_shortens_norms_and_exchanges_by_its_own_factor() -> None:
    inside = PLAIN_INSIDE._replace(tp=8, micro_batch=8)
    plain, split = (layers_of(inside=inside._replace(sequence_split=on), split_exchange=1.0).before[1] for on in (0, 1))
    assert split.forward_s < plain.forward_s
    assert split.forward_exchange_s == pytest.approx(plain.forward_exchange_s)
    dear = layers_of(inside=inside._replace(sequence_split=True), split_exchange=2.0, exchange_s=0.0).before[1]
    cheap = layers_of(inside=inside._replace(sequence_split=True), split_exchange=1.0, exchange_s=0.0).before[1]
    assert dear.forward_exchange_s == pytest.approx(2 * cheap.forward_exchange_s)


def test_a_context_split_divides_tokens_and_gathers_keys() -> None:
    one, split = (layers_of(inside=PLAIN_INSIDE._replace(cp=size, micro_batch=8)).before[1] for size in (1, 4))
    keys = 2 * 4096 * 8 * 512 * 2
    assert split.forward_sent_bytes == pytest.approx(keys * 3 / 4)
    assert one.forward_s / 4 < split.forward_s < one.forward_s


def test_adding_weight_gradients_up_costs_its_bytes() -> None:
    bare, added = (layers_of(accumulated_bytes=each).before[1] for each in (0.0, 10.0))
    parameters = 12 * 4096**2 + 13 * 4096
    assert added.weight_s - bare.weight_s == pytest.approx(parameters * 10 / (2e12 * PROFILE.memory_share), rel=1e-3)
    assert added.input_s == bare.input_s


def test_late_hosts_hold_up_exchanges_of_small_layers() -> None:
    small = gpt(Shape(hidden=256, heads=8, layers=1, sequence=512, vocab=1000))
    inside = PLAIN_INSIDE._replace(tp=8)
    on_time, late = (layers_of(small, inside, rendezvous_s=each, sharpness=40.0).before[1] for each in (0.0, 1e-4))
    assert late.forward_s - on_time.forward_s == pytest.approx(2 * 7 * 1e-4, rel=0.2)
