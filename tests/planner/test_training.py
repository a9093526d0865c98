from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.errors import CapacityError, PlanError
from plait.planner.grid import Grid
from plait.planner.result import Candidate, Choice, choice_json
from plait.planner.selection import Selection
from plait.planner.space import TrainingLimits
from plait.planner.training import plan_training, ranked_ways
from plait.planner.training_break_even import flip
from plait.plans.training import TrainingPlan
from plait.simulator.step import forecast_step
from plait.spec.cluster import Cluster, Host, Network, Wire
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec
from plait.spec.presets import cluster_preset, device_preset, model_preset
from plait.units import format_rate

from .test_grid import costs
from .training_clusters import cluster, model

JOB = TrainingJob(16, 512)


def p9_cluster(hosts: int) -> Cluster:
    """Case P9: 8 GPUs a host at 300 GB/s, hosts at 25 GB/s each."""
    one = device_preset("a100-80gb")
    devices = tuple(
        replace(one, name=f"gpu-{host}.{index}", host=f"host-{host}") for host in range(hosts) for index in range(8)
    )
    network = Network(Wire(3e-6, 300e9), Wire(5e-6, 25e9, 25e9))
    return Cluster(tuple(Host(f"host-{host}") for host in range(hosts)), devices, (), network)


@pytest.fixture(scope="module")
def p9() -> Choice:
    return plan_training(model_preset("gpt3-175b"), p9_cluster(16), TrainingJob(128, 2048))


@pytest.fixture(scope="module")
def choice() -> Choice:
    return plan_training(model(), cluster(2, 4, memory_gb=1.5, between=5e9), JOB)


class TestP9:
    """Public case P9: tensor inside the host, pipeline across hosts, data around both."""

    def test_the_model_needs_64(self) -> None:
        with pytest.raises(CapacityError, match="would hold it") as error:
            plan_training(model_preset("gpt3-175b"), p9_cluster(4), TrainingJob(128, 2048))
        assert "gpt3-175b does not fit on 32 devices for a batch of 128 × 2048 tokens" in str(error.value)

    def test_tensor_inside_pipeline_across_data_around(self, p9: Choice) -> None:
        split = p9.chosen.split
        assert 1 < split.tp <= 8
        assert split.pp > 1
        assert split.pp * split.tp >= 64
        assert split.dp > 1
        assert p9.chosen.kind == "data + pipeline + tensor"

    def test_a_tensor_group_never_crosses_a_host(self, p9: Choice) -> None:
        tp = p9.chosen.split.tp
        for names in p9.chosen.devices:
            for start in range(0, len(names), tp):
                assert len({name.split(".")[0] for name in names[start : start + tp]}) == 1

    def test_the_reason_is_printed(self, p9: Choice) -> None:
        split = p9.chosen.split
        for words in (
            f"tensor groups of {split.tp} stay inside a host (300 GB/s)",
            f"the pipeline of {split.pp} goes across hosts (3.12 GB/s)",
            f"data over {split.dp} around them",
        ):
            assert words in p9.reason

    def test_groups_across_hosts_lose_and_it_is_said_why(self, p9: Choice) -> None:
        across = [one for one in p9.candidates if one.split.tp > 8]
        assert across
        for one in across:
            assert f"tensor groups of {one.split.tp} cross hosts: 3.12 GB/s instead of 300 GB/s" in one.loses
            assert one.predicted["step_s"] > p9.chosen.predicted["step_s"]


class TestExperts:
    def test_mixtral_divides_its_experts_inside_hosts(self) -> None:
        choice = plan_training(model_preset("mixtral-8x7b"), cluster_preset("h100", 64), TrainingJob(256, 4096))
        assert choice.chosen.split.ep == 8
        assert choice.chosen.split.ep * choice.chosen.split.tp <= 8
        assert "the experts' all-to-all over 8 goes inside a host" in choice.reason


def of_kinds(choice: Choice) -> dict[str, Candidate]:
    found: dict[str, Candidate] = {}
    for one in choice.candidates:
        found.setdefault(one.kind, one)
    return found


class TestAnswer:
    def test_ranked_and_the_chosen_first(self, choice: Choice) -> None:
        steps = [one.predicted["step_s"] for one in choice.candidates]
        assert steps == sorted(steps)
        assert choice.chosen is choice.candidates[0]
        assert all(one.simulated for one in choice.candidates[:10])

    def test_every_candidate_can_be(self, choice: Choice) -> None:
        for one in choice.candidates:
            split = one.split
            assert split.dp * split.pp * split.tp * split.ep <= 8
            plan = one.plan
            assert isinstance(plan, TrainingPlan)
            assert split.dp * split.ep * plan.setup.micro_batch * one.micro_batches == JOB.batch
            assert one.cut[0][0] == 0
            assert one.cut[-1][1] == 8
            assert all(a[1] == b[0] for a, b in zip(one.cut, one.cut[1:], strict=False))
            for memory in one.memory:
                assert memory.need_bytes <= memory.free_bytes

    def test_the_plan_holds_every_rank_once_a_position(self, choice: Choice) -> None:
        for one in choice.candidates:
            layout = one.plan.layout
            ranks = [rank for stages in layout.positions for rank in layout.stages[stages[0]].ranks]
            assert sorted(ranks) == list(range(one.split.ranks))
            assert layout.cut == one.cut
            assert len(layout.positions) == one.split.pp

    def test_every_kind_that_fits_is_there_and_says_why_it_loses(self, choice: Choice) -> None:
        kinds = of_kinds(choice)
        assert {"data + pipeline", "data + tensor", "pipeline", "tensor", "data + pipeline + tensor"} <= set(kinds)
        for one in choice.candidates[1:]:
            assert "a step" in one.loses or "as fast, but" in one.loses
        assert choice.chosen.loses == ""

    def test_what_does_not_fit_is_grouped_with_its_numbers(self, choice: Choice) -> None:
        whole = next(one for one in choice.rejected if dict(one.split) == {"pp": 1, "tp": 1, "ep": 1})
        assert whole.count > 0
        assert whole.need > whole.have == 1_500_000_000
        assert whole.reason.startswith("memory: a device would need ")
        assert whole.reason.endswith(" and has 1.4 GiB")

    def test_the_keys_of_the_design(self, choice: Choice) -> None:
        for one in choice_json(choice)["candidates"]:
            assert set(one["predicted"]) == {
                "step_s", "mfu", "bubble", "comm_bytes", "compute_s", "transfer_s", "wait_s", "peak_bytes",
                "tokens_per_s",
            }  # fmt: skip

    def test_what_nobody_compared_is_not_called_calibrated(self, choice: Choice) -> None:
        assert choice.chosen.note == "not calibrated: profile 'plain' was never compared with a measured run"


def test_one_device_is_chosen_where_links_are_hopeless() -> None:
    """A plan that is worse than one device alone is never recommended."""
    choice = plan_training(model(), cluster(4, 1, between=1e6), JOB)
    assert choice.chosen.kind == "one device"
    assert choice.reason.startswith("one device, ")
    assert "3 of 4 devices stay out" in choice.reason
    others = [one for one in choice.candidates if one.kind != "one device"]
    assert others
    assert all(one.predicted["step_s"] > choice.chosen.predicted["step_s"] for one in others)


def over(bandwidth: float) -> Choice:
    return plan_training(model(), cluster(4, 1, between=bandwidth), JOB)


@pytest.mark.parametrize(("between", "side"), [(1e9, "below"), pytest.param(3e7, "from", marks=pytest.mark.soak)])
def test_beyond_the_break_even_the_other_kind_is_chosen(between: float, side: str) -> None:
    choice = over(between)
    (found,) = (one for one in choice.break_even if side in one.text)
    assert (found.value > between) == (side == "from")
    before, after = (1.05, 0.95) if side == "below" else (0.95, 1.05)
    assert over(found.value * before).chosen.kind == choice.chosen.kind
    assert over(found.value * after).chosen.kind == found.kind != choice.chosen.kind
    assert found.quantity == "bandwidth between hosts, bytes/s a device"
    assert found.text.startswith(f"{found.kind} wins {side} {format_rate(found.value)} a device between hosts")
    assert found.text.endswith(f", in place of {choice.chosen.kind} (there are {format_rate(between)})")


@pytest.mark.parametrize(
    ("hosts", "per_host", "between", "memory_gb"),
    [
        pytest.param(2, 2, 1e9, 80, marks=pytest.mark.soak),
        pytest.param(2, 4, 5e9, 1.5, marks=pytest.mark.soak),
        (4, 1, 2e8, 1.6),
        pytest.param(3, 2, 1e10, 4, marks=pytest.mark.soak),
    ],
)
def test_every_break_even_is_true_when_planned_again(
    hosts: int, per_host: int, between: float, memory_gb: float
) -> None:
    def there(bandwidth: float) -> Choice:
        machines = cluster(hosts, per_host, between=bandwidth, memory_gb=memory_gb)
        return plan_training(model(), machines, JOB)

    choice = there(between)
    for found in choice.break_even:
        side = 1.05 if found.value > between else 0.95
        assert there(found.value * side).chosen.kind == found.kind
        assert there(found.value * (2 - side)).chosen.kind == choice.chosen.kind != found.kind


def test_large_searches_tell_no_break_even() -> None:
    """They have no time to plan again, and what was not planned again may be false."""
    choice = plan_training(model_preset("gpt-1t"), cluster_preset("a100", 1024), TrainingJob(1536, 2048))
    assert choice.break_even == ()


class TestFlip:
    def test_found_near_a_guess(self) -> None:
        found = flip(lambda by: "a" if by < 4.0 else "b", "a", 1000.0, 3.5)
        assert found is not None
        assert found[1] == "b"
        assert found[0] * 0.95 < 4.0 <= found[0] * 1.05

    def test_found_without_a_guess(self) -> None:
        found = flip(lambda by: "a" if by > 0.19 else "b", "a", 1 / 1000.0, None)
        assert found is not None
        assert found[0] * 0.95 <= 0.19 < found[0] * 1.05

    def test_a_guess_that_is_false_is_not_told(self) -> None:
        assert flip(lambda _: "a", "a", 1000.0, 2.0) is None
        assert flip(lambda _: "a", "a", 1 / 1000.0, None) is None


@pytest.mark.parametrize(
    ("experts", "vocab"),
    [(0, 8192), *(pytest.param(*one, marks=pytest.mark.soak) for one in ((4, 8192), (0, 60_000), (4, 60_000)))],
)
def test_figures_are_those_of_the_simulator(experts: int, vocab: int) -> None:
    """`plait simulate` says of every plan shown what `plait plan` said; no figure is below nothing."""
    spec, machines = model(vocab=vocab, experts=experts), cluster(2, 4, memory_gb=3.0, between=5e9)
    choice = plan_training(spec, machines, JOB)
    for one in choice.candidates[:10]:
        assert isinstance(one.plan, TrainingPlan)
        again = forecast_step(one.plan, spec, machines)
        for key, value in one.predicted.items():
            assert value == pytest.approx(again.predicted[key], abs=1e-12)
            assert value >= 0
        assert max(memory.need_bytes for memory in one.memory) == again.predicted["peak_bytes"]


@settings(max_examples=25, deadline=None)
@given(
    hosts=st.integers(1, 3),
    per_host=st.sampled_from([1, 2, 4]),
    memory=st.sampled_from([1.0, 2.0, 4.0, 16.0]),
    between=st.sampled_from([1e8, 1e9, 2.5e10]),
    more=st.sampled_from(["hosts", "memory", "between", "within"]),
    layers=st.sampled_from([4, 6]),
)
def test_more_never_makes_it_worse(
    hosts: int, per_host: int, memory: float, between: float, more: str, layers: int
) -> None:
    spec = model(layers=layers)
    figures: dict[str, Any] = {"hosts": hosts, "memory_gb": memory, "between": between, "within": 1e11}
    better = dict(figures)
    match more:
        case "hosts":
            better["hosts"] = hosts + 1
        case "memory":
            better["memory_gb"] = memory * 1.5
        case "between":
            better["between"] = between * 3
        case _:
            better["within"] = 3e11

    def best_s(given: dict[str, Any]) -> float:
        counting = costs(spec, cluster(per_host=per_host, **given), TrainingJob(12, 512))
        selection = Selection(Grid(counting, given["hosts"] * per_host, TrainingLimits()))
        best = selection.best(10)
        return ranked_ways(counting, selection, best)[0][0].step_s if best else float("inf")

    assert best_s(better) <= best_s(figures) * (1 + 1e-9)


class TestErrors:
    def test_objective(self) -> None:
        with pytest.raises(PlanError) as error:
            plan_training(model(), cluster(), JOB, "latency")
        assert str(error.value) == "objective 'latency' is of generation: training has --objective step"

    def test_devices(self) -> None:
        with pytest.raises(PlanError) as error:
            plan_training(model(), cluster(), JOB, limits=TrainingLimits(devices=9))
        assert str(error.value) == "9 devices were asked for, but the cluster has 8"

    def test_schedule(self) -> None:
        with pytest.raises(PlanError) as error:
            TrainingLimits(schedules=("1f1",))
        assert str(error.value) == "unknown schedule '1f1' for training: did you mean '1f1b'?"

    def test_nothing_fits(self) -> None:
        with pytest.raises(CapacityError) as error:
            plan_training(model(), cluster(1, 2, memory_gb=1.0), JOB)
        words = str(error.value)
        assert words.startswith(
            "tiny does not fit on 2 devices for a batch of 16 × 512 tokens: the least that any way "
        )
        assert ", 953.7 MiB are there, " in words
        assert " are missing on each of 2; 4 such devices would hold it (" in words

    def test_a_limit_is_what_keeps_it_from_fitting(self) -> None:
        machines = cluster(1, 4, memory_gb=1.1)
        with pytest.raises(CapacityError) as error:
            plan_training(model(), machines, JOB, limits=TrainingLimits(dp=1, recompute=("none",), micro_batch=16))
        assert "; without these limits " in str(error.value)
        assert " would fit" in str(error.value)

    def test_no_way_within_limits(self) -> None:
        limits = TrainingLimits(pp=3, virtual=2, schedules=("interleaved",))
        with pytest.raises(CapacityError) as error:
            plan_training(model(layers=8), cluster(), JOB, limits=limits)
        assert str(error.value) == (
            "no way to split tiny over 8 devices for a batch of 16 has --pp 3 --virtual 2 --schedule interleaved: "
            "dp × ep must divide the batch, a micro-batch a replica's share, and there must be layers for all stages "
            "(interleaved ones must be equal, but for the first and the last)"
        )


def test_limits_are_kept() -> None:
    limits = TrainingLimits(dp=2, pp=2, tp=2, virtual=2, micro_batch=2, schedules=("interleaved",), zero=(0,))
    choice = plan_training(model(), cluster(), JOB, limits=limits)
    for one in choice.candidates:
        assert (one.split.dp, one.split.pp, one.split.tp) == (2, 2, 2)
        assert (one.schedule, one.micro_batches, one.zero) == ("interleaved", 4, 0)


def test_head_counts_that_do_not_divide() -> None:
    """Case P7, for training: 9 heads over 2 ranks are split 5 and 4."""
    spec: ModelSpec = model(layers=4, heads=9, hidden=576)
    choice = plan_training(spec, cluster(1, 2), JOB, limits=TrainingLimits(tp=2))
    assert choice.chosen.split.tp == 2


@pytest.mark.parametrize("gpus", [512, 1024])
def test_a_trillion_parameters_need_no_weights(gpus: int) -> None:
    choice = plan_training(model_preset("gpt-1t"), cluster_preset("a100", gpus), TrainingJob(1536, 2048))
    assert choice.chosen.split.ranks <= gpus
    assert choice.chosen.split.tp <= 8
