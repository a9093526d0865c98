"""What cannot be is said with its figures: case P3, ways that are rejected, and axes that nobody can lay out."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from plait.costs.serving import ServingModel
from plait.errors import CapacityError, PlanError
from plait.planner.capacity import PROCESS_BYTES
from plait.planner.result import Rejected
from plait.planner.serving import ServingLimits, plan_serving
from plait.planner.serving_memory import merged
from plait.spec.cluster import Wire
from plait.spec.job import Job
from plait.spec.presets import cluster_preset, model_preset
from plait.units import format_bytes
from tests.planner.machines import LLAMA_70B, SMOL, hosts, plain, single

JOB = Job(128, 128, 1, 8192)
MODEL = plain(20, 1e9)


def need_bytes(devices: int, layers: int = 20, positions: int = 8192) -> float:
    """By hand: layers with keys and values of 32 heads of 128, ends, workspace of 128 positions, and the processes."""
    model = ServingModel(MODEL, single({"a": (1, 1)}))
    layer = model.weight_bytes(0) + 2 * 32 * 128 * 2 * positions
    ends = 2 * 4096 * 1 * 2 + 4096 * 2 + 8 * 1
    return layers * layer + ends + devices * (model.workspace_bytes(128, 0, positions) + PROCESS_BYTES)


class TestP3:
    """exo #1089: "not enough memory", without numbers. Total free = 0.98 × need."""

    def refusal(self, share: float = 0.98, weights: str | None = None) -> str:
        free = need_bytes(2) * share / 2 / 1e9
        with pytest.raises(CapacityError) as error:
            plan_serving(MODEL, single({"a": (100, free), "b": (100, free)}), JOB, "latency", weights=weights)
        return str(error.value)

    def test_need_free_and_shortfall_in_all_and_of_each_device(self) -> None:
        message, need = self.refusal(), need_bytes(2)
        free = 2 * round(need * 0.98 / 2 / 1e9 * 1e9)
        assert message.startswith(
            f"plain does not fit: it needs {format_bytes(need)} on 2 devices and {format_bytes(free)} are free, "
            f"{format_bytes(need - free)} are missing (a needs "
        )
        each = format_bytes(free / 2)
        one = rf"needs [\d.]+ GiB, has {each}, misses [\d.]+ MiB"
        assert re.search(rf"\(a {one}; b {one}\); a context of", message)

    def test_the_largest_context_fits_and_the_next_one_does_not(self) -> None:
        found = re.search(r"a context of (\d+) would fit \(--context (\d+)\)", self.refusal())
        assert found is not None
        context = int(found[1])
        assert found[1] == found[2]
        assert context % 64 == 0
        free = need_bytes(2) * 0.98 / 2 / 1e9
        cluster = single({"a": (100, free), "b": (100, free)})
        assert plan_serving(MODEL, cluster, replace(JOB, context=context), "latency").chosen.split.ranks == 2
        with pytest.raises(CapacityError):
            plan_serving(MODEL, cluster, replace(JOB, context=context + 64), "latency")

    def test_the_weight_format_that_fits(self) -> None:
        """The widest one below what was asked: q8_0 has 8.5 bits; with half the memory 4.5 to 8 bits are needed."""
        assert "; with weights in q8_0 it would fit (--weights q8_0)" in self.refusal()
        found = re.search(r"with weights in (\w+) it would fit", self.refusal(0.45))
        assert found is not None
        free = need_bytes(2) * 0.45 / 2 / 1e9
        cluster = single({"a": (100, free), "b": (100, free)})
        assert plan_serving(MODEL, cluster, JOB, "latency", weights=found[1])

    def test_context_and_format_together(self) -> None:
        message = self.refusal(0.2, "q4_0")
        assert "would fit (--context" not in message.split("with weights")[0] or "with weights" not in message

    def test_nothing_would_fit(self) -> None:
        assert self.refusal(0.05).endswith(
            "; no context and no weight format that Plait has would fit: use a smaller model or more machines"
        )


def test_one_device_that_is_too_small_is_named_alone() -> None:
    with pytest.raises(CapacityError) as error:
        plan_serving(MODEL, single({"only": (100, 10)}), JOB, "latency")
    need, free = need_bytes(1), 10e9
    assert str(error.value).startswith(
        f"plain does not fit: it needs {format_bytes(need)} and {format_bytes(free)} are free, "
        f"{format_bytes(need - free)} are missing (only needs {format_bytes(need)}, has {format_bytes(free)}, "
        f"misses {format_bytes(need - free)}); with weights in q5_0 it would fit (--weights q5_0)"
    )


def test_many_devices_are_not_all_listed() -> None:
    wire = Wire(1e-6, 1e11)
    with pytest.raises(CapacityError) as error:
        plan_serving(LLAMA_70B, hosts(3, 4, wire, wire, memory=3), Job(64, 64), "latency")
    assert str(error.value).count(" needs ") == 8 + 1
    assert "; and 4 more)" in str(error.value)


@pytest.mark.soak
def test_more_devices_than_heads_or_layers() -> None:
    choice = plan_serving(SMOL, hosts(4, 8, Wire(1e-6, 1e11), Wire(1e-6, 1e11)), Job(64, 64), "latency")
    found = [(one.split, one.count, one.reason, one.need, one.have) for one in choice.rejected]
    assert found == [
        ({"tp": 32}, 23, "every rank along tp needs a query head, and smol has 9", 32.0, 9.0),
        ({"pp": 32}, 2, "every rank along pp needs a layer, and smol has 30", 32.0, 30.0),
    ]


class TestRejected:
    CLUSTER = single({"a": (100, 12), "b": (100, 12), "c": (100, 12)}, 1e-4, 1e9)

    def test_each_group_has_its_number(self) -> None:
        choice = plan_serving(MODEL, self.CLUSTER, JOB, "latency")
        groups = {(one.split["pp"], one.split["tp"]): one for one in choice.rejected}
        alone = groups[1, 1]
        assert alone.count == 1  # the three are of one sort
        assert alone.need == pytest.approx(need_bytes(1), rel=0.001)
        assert alone.have == 12e9
        assert alone.reason == (
            f"not enough memory: {format_bytes(alone.need)} are needed, the largest device has {format_bytes(12e9)}"
        )

    def test_a_larger_device_for_which_there_is_a_way_is_not_denied(self) -> None:
        """Two sorts of one device: the large one holds the model, so what cannot be is said of the others."""
        cluster = single({"a": (100, 12), "b": (100, 96), "c": (100, 12)}, 1e-4, 1e9)
        choice = plan_serving(MODEL, cluster, JOB, "latency")
        alone = next(one for one in choice.rejected if (one.split["pp"], one.split["tp"]) == (1, 1))
        assert alone.reason == (
            f"not enough memory: {format_bytes(alone.need)} are needed, the largest device of these ways has "
            f"{format_bytes(12e9)}"
        )

    def test_pipelines_too_short(self) -> None:
        choice = plan_serving(plain(20, 1.5e9), self.CLUSTER, Job(64, 64), "latency", limits=ServingLimits(tp=1))
        pairs = next(one for one in choice.rejected if one.split["pp"] == 2)
        assert pairs.count == 3
        assert "the largest 2 devices together have 22.4 GiB" in pairs.reason

    def test_layers_that_do_not_divide(self) -> None:
        """3 layers of 5 GB: 15 GB in all are less than two devices have, and no device holds two of them."""
        choice = plan_serving(plain(3, 5e9), single({"a": (1, 9), "b": (1, 9), "c": (1, 9)}), Job(16, 16), "latency")
        pairs = next(one for one in choice.rejected if (one.split["pp"], one.split["tp"]) == (2, 1))
        assert pairs.reason == "no cut into whole layers fits the memory of every device"
        assert pairs.need < pairs.have


def test_what_fits_with_another_deal_of_heads_is_not_refused() -> None:
    """Pairs of unequal devices: dealt for one of two stages they do not hold the model, dealt for all of it they do."""
    choice = plan_serving(model_preset("llama3-8b"), cluster_preset("home"), Job(512, 256), "latency")
    assert any(candidate.split.tp == 2 for candidate in choice.candidates)
    assert [one.split for one in choice.rejected] == [{"pp": 1, "tp": 1}]


def test_a_group_whose_heads_are_too_large_names_the_device_that_is_short() -> None:
    """12 GB of layers on 30 and 0.8 GB: one of 32 heads takes 0.375 GB, its vocabulary 0.1, a process 0.37."""
    spec = replace(plain(12, 1e9), vocab=200_000)
    choice = plan_serving(spec, single({"a": (100, 30), "b": (100, 0.8)}, 1e-4, 1e9), JOB, "latency")
    (pair,) = (one for one in choice.rejected if one.split == {"pp": 1, "tp": 2})
    assert pair.need > pair.have
    assert pair.reason == (
        f"with heads dealt by speed, as far as there is memory, b would need {format_bytes(pair.need)} and has "
        f"{format_bytes(0.8e9)}"
    )


def test_the_same_axes_are_one_group_with_the_nearest_miss() -> None:
    far, near = Rejected({"tp": 2}, 3, "far", 9, 4), Rejected({"tp": 2}, 4, "near", 9, 8)
    other = Rejected({"tp": 3}, 1, "other", 9, 8)
    assert merged([far, near, other]) == (Rejected({"tp": 2}, 7, "near", 9, 8), other)


@pytest.mark.parametrize(
    ("devices", "limits", "asked"),
    [
        (12, ServingLimits(tp=10), "--tp 10 (there are 9 query heads)"),
        (31, ServingLimits(pp=31), "--pp 31 (there are 30 layers)"),
        (4, ServingLimits(dp=3, tp=2), "--dp 3 --tp 2 (it takes 6 devices)"),
        (4, ServingLimits(pp=1, schedule="pipelined"), "--pp 1 --schedule pipelined"),
    ],
)
def test_axes_that_nobody_can_lay_out(devices: int, limits: ServingLimits, asked: str) -> None:
    cluster = hosts(1, devices, Wire(1e-2, 1e9), Wire(1e-2, 1e9))
    with pytest.raises(PlanError) as error:
        plan_serving(SMOL, cluster, Job(64, 64), "latency", limits=limits)
    assert str(error.value) == (
        f"no way to split smol over {devices} devices has {asked}; without it the best is --dp 1 --pp 1 --tp 1"
    )


def test_a_context_that_the_model_was_not_made_for() -> None:
    with pytest.raises(PlanError) as error:
        plan_serving(SMOL, single({"a": (100, 16)}), Job(64, 64, 1, 9000), "latency")
    assert str(error.value) == "context is 9000 positions, but smol was made for at most 8192: 808 too many"


def test_an_objective_of_training() -> None:
    with pytest.raises(PlanError) as error:
        plan_serving(SMOL, single({"a": (100, 16)}), Job(64, 64), "step")
    assert str(error.value) == "objective 'step' is not of generation: latency, throughput or ttft is"
