from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.planner.space import (
    TrainingLimits,
    Way,
    divisors,
    kind_of,
    micro_batch_sizes,
    pipeline_degrees,
    splits,
    tensor_degrees,
    ways,
)
from plait.plans.split import Split

from .training_clusters import model


@given(st.integers(1, 6), st.integers(1, 48), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 12, 32]))
def test_with_more_devices_the_space_loses_nothing(more: int, devices: int, per_host: int, batch: int) -> None:
    spec, limits = model(layers=6, experts=4), TrainingLimits()
    few = splits(spec, batch, devices, per_host, limits)
    many = splits(spec, batch, devices + more, per_host, limits)
    assert set(few) <= set(many)
    assert len(set(few)) == len(few)
    for split in many:
        assert split.ranks <= devices + more
        assert batch % (split.dp * split.ep) == 0
        assert spec.experts is not None
        assert spec.experts.count % split.ep == 0


def test_tensor_groups_divide_a_host_or_fill_hosts() -> None:
    assert tensor_degrees(160, 8) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert tensor_degrees(9, 8) == [1, 2, 4, 8]
    assert tensor_degrees(32, 6) == [1, 2, 3, 6, 12, 24]


def test_pipelines_of_llama_3_405b_and_of_a_trillion() -> None:
    assert 16 in pipeline_degrees(126)
    assert {32, 64, 128} <= set(pipeline_degrees(128))
    assert max(pipeline_degrees(5)) == 5


@pytest.mark.parametrize(
    ("split", "kind"),
    [
        (Split(), "one device"),
        (Split(dp=2), "data"),
        (Split(dp=2, pp=4, tp=8), "data + pipeline + tensor"),
        (Split(ep=8, pp=2), "expert + pipeline"),
    ],
)
def test_kinds(split: Split, kind: str) -> None:
    assert kind_of(split) == kind


def test_ways_that_make_sense() -> None:
    assert Way("1f1b", 1).allows(1, 8)
    assert not Way("zb-v", 2).allows(1, 8)
    assert Way("zb-v", 2).allows(4, 8)
    assert not Way("zb-v", 2).allows(5, 8)
    assert Way("interleaved", 2).allows(8, 30)  # one layer fewer on the first and on the last stage
    assert not Way("interleaved", 3).allows(4, 20)


def test_ways_within_limits() -> None:
    assert ways(TrainingLimits(schedules=("gpipe",))) == [Way("gpipe", 1)]
    assert ways(TrainingLimits(schedules=("interleaved",), virtual=5)) == [Way("interleaved", 5)]


def test_micro_batches() -> None:
    assert micro_batch_sizes(4096, TrainingLimits()) == (1, 2, 3, 4, 6, 8)
    assert micro_batch_sizes(100_000, TrainingLimits()) == (1,)
    assert micro_batch_sizes(4096, TrainingLimits(micro_batch=5)) == (5,)


def test_divisors() -> None:
    assert divisors(3072)[:5] == [1, 2, 3, 4, 6]
    assert divisors(1) == [1]
    assert divisors(49) == [1, 7, 49]
