"""A predicted training step of a plan on its cluster."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from plait.costs.states import rank_parameters, state_bytes
from plait.costs.training import TrainingModel
from plait.errors import PlanError
from plait.planner.placement import devices_in_order, training_layout
from plait.plans.layout import Layout, Stage
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import step_bytes
from plait.schedules.step import executed_round
from plait.simulator.step import StepForecast, forecast_step
from plait.spec.cluster import Cluster, Device, Host, Network, Wire, equal_machine
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec
from plait.spec.presets import cluster_preset, model_preset
from plait.timeline.compare import summarise

SPEC = model_preset("gpt-1.7b")


def plan(split: Split, schedule: str = "1f1b", micro_batches: int = 8, virtual: int = 1, zero: int = 0) -> TrainingPlan:
    count = split.pp * virtual
    cut = tuple(pairwise(SPEC.layers * index // count for index in range(count + 1)))
    setup = TrainingSetup(split, schedule, 1, micro_batches, virtual, "none", zero)
    machines = cluster_preset("a100", split.ranks)
    hosts = [device.host for device in machines.devices]
    layout = training_layout(setup, cut, devices_in_order(machines), "bfloat16", hosts)
    return TrainingPlan(SPEC.name, layout, setup, micro_batches * split.dp * split.ep, 2048)


def forecast(made: TrainingPlan) -> StepForecast:
    return forecast_step(made, SPEC, cluster_preset("a100", made.layout.ranks))


@pytest.mark.parametrize(
    "made",
    [
        plan(Split()),
        plan(Split(pp=4)),
        plan(Split(dp=2, pp=2, tp=2), zero=1),
        plan(Split(pp=4), "interleaved", 8, 2),
        plan(Split(dp=2, pp=4), "zb-v", 8, 2),
    ],
)
def test_a_ranks_time_adds_up_to_the_step(made: TrainingPlan) -> None:
    predicted = forecast(made).predicted
    parts = predicted["compute_s"] + predicted["transfer_s"] + predicted["wait_s"]
    assert parts == pytest.approx(predicted["step_s"])
    assert predicted["bubble"] == pytest.approx(1 - predicted["compute_s"] / predicted["step_s"])
    assert predicted["tokens_per_s"] == pytest.approx(made.batch * 2048 / predicted["step_s"])
    assert 0 < predicted["mfu"] < 1


def test_one_device_waits_for_nobody() -> None:
    found = forecast(plan(Split()))
    assert found.predicted["comm_bytes"] == 0
    assert found.predicted["residue_s"] == 0
    assert found.timeline.ranks == (0,)
    assert found.stages[0].weight_bytes == pytest.approx(1.652e9 * 2, rel=0.001)


def test_a_pipeline_waits_as_the_closed_formula_says() -> None:
    """(p − 1) ÷ (m + p − 1) of 1F1B with equal stages. The head makes the last stage longer: no less than that."""
    found = forecast(plan(Split(pp=4), micro_batches=32))
    busy = [one.shares.compute_s / found.timeline.makespan_s for one in summarise(found.timeline).stages]
    assert max(busy) == busy[-1] < 1
    assert 1 - max(busy) < 3 / 35 + 0.05
    assert 1 - sum(busy) / 4 > 3 / 35


def test_replicas_are_one_position() -> None:
    found = forecast(plan(Split(dp=4, pp=2, tp=2)))
    assert found.timeline.ranks == (0, 8)
    assert [stage.ranks for stage in found.stages] == [tuple(range(8)), tuple(range(8, 16))]


def test_bytes_are_what_all_ranks_send() -> None:
    """Of two replicas of a pipeline: the timeline has one rank of each position."""
    made = plan(Split(dp=2, pp=2))
    found = forecast(made)
    sent = sum(span.payload_bytes for span in found.timeline.spans)  # of each position's first rank
    assert found.predicted["comm_bytes"] == 2 * sent
    messages = 2 * 8 * 2048 * SPEC.hidden * 2  # forward and back, 8 micro-batches
    assert found.predicted["comm_bytes"] > 2 * messages


def test_a_tied_embedding_lies_once_on_a_position_that_has_both_ends() -> None:
    """V-shaped: position 0 holds the first and the last stage. gpt-1.7b's head is its embedding."""
    assert SPEC.tied
    made = plan(Split(pp=2), "dualpipe-v", 8, 2)
    machine = equal_machine(cluster_preset("a100", 2))
    assert machine is not None
    model = TrainingModel(SPEC, TrainingJob(8, 2048), machine)
    setup, cut = made.setup, made.layout.cut
    ends = [model.stage_state_bytes(setup, cut, stage) for stage in (0, 3)]
    whole = rank_parameters(SPEC, [cut[0], cut[3]], 1, 1)
    assert sum(ends) == pytest.approx(state_bytes(whole, model.recipe, 0, setup.split).total_bytes, abs=1)


def message(made: TrainingPlan, machines: Cluster | None, spec: ModelSpec = SPEC) -> str:
    with pytest.raises(PlanError) as caught:
        forecast_step(made, spec, machines)
    return str(caught.value)


def test_plans_that_cannot_be_simulated() -> None:
    made = plan(Split(pp=4))
    assert message(made, None) == (
        "the plan names no machines: a plan of training needs a [cluster] table, as plait plan -o writes it"
    )
    assert message(made, cluster_preset("a100", 2)) == "the plan has 4 ranks, but its cluster 2 devices"
    unnamed = replace(made.layout, stages=tuple(replace(stage, devices=()) for stage in made.layout.stages))
    assert message(replace(made, layout=unnamed), cluster_preset("home")) == (
        "the plan's machines are not equal, so each stage must name its devices, as plait plan -o writes them"
    )
    assert message(replace(made, batch=9), cluster_preset("a100", 4)).startswith("batch is 9 sequences, but ")


UNEQUAL = Cluster(
    (Host("a"), Host("b")),
    (
        Device("fast", "a", 80 * 2**30, {"bfloat16": 2e14, "float32": 1e14}, 2e12),
        Device("slow", "b", 80 * 2**30, {"bfloat16": 1e14, "float32": 5e13}, 1e12),
    ),
    network=Network(Wire(1e-5, 1e10), Wire(1e-5, 1e10)),
)


def on_unequal(layers: int) -> TrainingPlan:
    """The first `layers` on the fast machine, the others on the slow one."""
    stages = (
        Stage((0, layers), (0,), "bfloat16", "bfloat16", devices=("fast",)),
        Stage((layers, SPEC.layers), (1,), "bfloat16", "bfloat16", devices=("slow",)),
    )
    setup = TrainingSetup(Split(pp=2), "1f1b", 1, 8)
    return TrainingPlan(SPEC.name, Layout({"pp": 2}, stages, 4), setup, 8, 2048)


def test_unequal_machines_each_by_its_own_figures() -> None:
    """A machine that is half as fast takes twice as long for the same layers; two thirds on the fast one is better."""
    even, better = forecast_step(on_unequal(12), SPEC, UNEQUAL), forecast_step(on_unequal(16), SPEC, UNEQUAL)
    fast, slow = (one.shares.compute_s for one in summarise(even.timeline).stages)
    assert slow > 2 * fast * 0.9
    assert better.predicted["step_s"] < even.predicted["step_s"]


def test_equal_machines_among_unequal_ones() -> None:
    """A plan that leaves the odd machine out is one on equal machines."""
    made = plan(Split(pp=4))
    machines = cluster_preset("a100", 4)
    odd = Device("odd", "node-0", 2**30, {"bfloat16": 1e12}, 1e11)
    more = Cluster(machines.hosts, (*machines.devices, odd), network=machines.network)
    assert forecast_step(made, SPEC, more).predicted == forecast_step(made, SPEC, machines).predicted


def on_both() -> TrainingPlan:
    """A tensor group of the fast machine and the slow one."""
    stages = (Stage((0, SPEC.layers), (0, 1), "bfloat16", "bfloat16", devices=("fast", "slow")),)
    return TrainingPlan(SPEC.name, Layout({"tp": 2}, stages, 4), TrainingSetup(Split(tp=2), "1f1b", 1, 8), 8, 2048)


def test_a_tensor_group_of_unequal_machines_goes_as_fast_as_the_slower() -> None:
    fast, slow = UNEQUAL.devices
    both = replace(UNEQUAL, devices=(replace(slow, name="fast", host=fast.host), slow))
    of_the_slow = forecast_step(on_both(), SPEC, both).predicted["step_s"]
    assert forecast_step(on_both(), SPEC, UNEQUAL).predicted["step_s"] == pytest.approx(of_the_slow)


def test_what_cannot_be_simulated_on_unequal_machines() -> None:
    fast, slow = UNEQUAL.devices
    differing = replace(UNEQUAL, devices=(replace(fast, profile="a100"), slow))
    assert message(on_both(), differing) == (
        "the plan's machines are not equal, and where they have no profile or no dtype in common only data and "
        "pipeline axes can be simulated yet"
    )


# --- as the trainer runs it ---------------------------------------------------------------------------------


def executed(made: TrainingPlan, spec: ModelSpec = SPEC) -> StepForecast:
    return forecast_step(made, spec, cluster_preset("a100", made.layout.ranks), executed=True)


EXECUTED = [
    plan(Split()),
    plan(Split(pp=4)),
    plan(Split(dp=4), zero=1),
    plan(Split(dp=2, pp=2, tp=2), zero=1),
    plan(Split(dp=2, pp=4), "zb-v", 8, 2),
    plan(Split(pp=4), "interleaved", 8, 2),
]


@pytest.mark.parametrize("made", EXECUTED)
def test_the_executed_round_is_the_trainers(made: TrainingPlan) -> None:
    """Predicted and measured spans join action by action."""
    found = executed(made)
    assert found.round == executed_round(0, made, SPEC)
    joined = {(span.action, span.rank) for span in found.timeline.spans}
    first = [made.layout.stages[stages[0]].ranks[0] for stages in made.layout.positions]
    assert joined == {(action, rank) for rank, of in zip(first, found.round.actions, strict=True) for action in of}


@pytest.mark.parametrize("made", EXECUTED)
def test_executed_bytes_are_those_of_the_rule(made: TrainingPlan) -> None:
    """But for sums within a tensor group at the last backward, and what dividing over ranks and buckets rounds off."""
    total = sum(step_bytes(SPEC, made).values())
    assert executed(made).predicted["comm_bytes"] == pytest.approx(total, rel=1e-4)


def test_executed_times_are_near_those_of_the_search() -> None:
    """T is not counted twice: it left G. What buckets hide may differ, no more."""
    for made in EXECUTED:
        search, run = forecast(made).predicted, executed(made).predicted
        assert run["step_s"] == pytest.approx(search["step_s"], rel=0.05)
    made = plan(Split(pp=4))
    costs = [forecast_step(made, SPEC, cluster_preset("a100", 4), executed=yes).timeline for yes in (False, True)]
    last = [{span.action.kind.value: span for span in one.spans if span.rank == 3} for one in costs]
    updates = [one["O"].end_s - one["O"].start_s for one in last]
    tied = last[1]["T"]
    exchange_s = next(part.end_s - part.start_s for part in tied.parts if part.what == "transfer")
    assert updates[0] == pytest.approx(updates[1] + exchange_s)


def test_untied_models_have_no_t() -> None:
    spec = replace(SPEC, tied=False)
    kinds = {span.action.kind.value for span in executed(plan(Split(pp=4)), spec).timeline.spans}
    assert "T" not in kinds
    assert "N" in kinds


def test_buckets_of_the_executed_round() -> None:
    made = plan(Split(dp=4))
    found = forecast_step(made, SPEC, cluster_preset("a100", 4), executed=True, buckets=7)
    assert sum(span.action.kind.value == "G" for span in found.timeline.spans) == 7


def test_memory_does_not_know_the_norm() -> None:
    made = plan(Split(dp=2, pp=2))
    assert executed(made).predicted["peak_bytes"] == forecast(made).predicted["peak_bytes"]


def test_unequal_machines_run_t_and_n_too() -> None:
    found = forecast_step(on_unequal(12), SPEC, UNEQUAL, executed=True)
    assert found.round == executed_round(0, on_unequal(12), SPEC)
    spans = {(span.action.kind.value, span.rank): span for span in found.timeline.spans}
    assert spans["N", 0].end_s == spans["N", 1].end_s
    assert spans["T", 0].payload_bytes == spans["T", 1].payload_bytes > 0
    search = forecast_step(on_unequal(12), SPEC, UNEQUAL).predicted
    assert found.predicted["step_s"] >= search["step_s"]
