"""The JSON of a report has the keys of its task, whatever happened in the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_timelines import timelines

from plait.costs.protocol import FREE, Exchange, FixedCosts, LinkCost
from plait.plans.action import Kind, Lane
from plait.plans.file import dump_plan
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.plans.round import MicroBatch, Row
from plait.reports.view_json import view_json
from plait.reports.view_of import make_view
from plait.schedules.generation import make_round
from plait.simulator.simulate import simulate
from plait.timeline.compare import summarise
from plait.timeline.record import RoundRecipe, RunRecord, StageSummary
from plait.timeline.timeline import MemoryTrack, Timeline
from tests.simulator.training_rounds import TINY, make_lowered_step

LAYOUT = Layout({"pp": 2}, (Stage((0, 1), (0,)), Stage((1, 2), (1,))))
PLAN = dump_plan(Plan("tiny", LAYOUT, "pipelined", 1, 64, 128, 1))
SLOW = LinkCost(1e-3, 1e6)
SOURCES = ("predicted", "measured")

OF_GENERATION = ["forward", "exchanges", "waits_for_others", "messages", "links_and_hand_over"]
OF_TRAINING = [
    "forward",
    "backward",
    "backward_of_inputs",
    "backward_of_weights",
    "norm_of_the_mesh",
    "optimizer",
    "exchanges",
    "waits_for_others",
    "messages",
    "reductions",
    "gathers",
    "links_and_hand_over",
]


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Every key, in its order, with where it stands; of a list those of its objects."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"{path}.{key}"
            yield from keys(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        yield from dict.fromkeys(each for inner in value for each in keys(inner, f"{path}[]"))


def generated(link: LinkCost) -> Timeline:
    """Two stages, one request: a prompt and three tokens."""
    return simulate(LAYOUT, [recipe.make(2) for recipe in RECIPES], FixedCosts({0: 1e-3, 1: 1e-3}, any_link=link), TINY)


def _recipes() -> Iterator[RoundRecipe]:
    carried: Any = ()
    for number in range(4):
        row = Row(0, 0, 63 + number, 1, True) if number else Row(0, 0, 0, 64, True)
        recipe = RoundRecipe(number, (MicroBatch((row,)),), carried)
        carried = recipe.make(2).carried_out
        yield recipe


RECIPES = tuple(_recipes())


def generation(predicted: Timeline | None, measured: Timeline | None, **result: Any) -> RunRecord:
    stages = tuple(StageSummary(n, one.ranks, one.layers, one.dtype) for n, one in enumerate(LAYOUT.stages))
    return RunRecord(PLAN, stages, {"name": "tiny"}, RECIPES, predicted, _measured(measured), result)


def trained(
    link: LinkCost, schedule: str = "1f1b", exchange: Exchange | None = None, reduce_s: float = 0.0
) -> tuple[Layout, Timeline]:
    """Layout and timeline of a step of two replicas of two stages."""
    layout, one = make_lowered_step(schedule, 2, 4, 1, capacity=4, replicas=2, buckets=1, norm=True)
    of_kind = {kind: 1e-3 if kind.lane is Lane.COMPUTE else reduce_s for kind in Kind if kind.lane is not Lane.P2P}
    kinds = {(stage, kind): each_s for stage in (0, 1) for kind, each_s in of_kind.items()}
    exchanges = {} if exchange is None else {(stage, Kind.FORWARD): exchange for stage in (0, 1)}
    costs = FixedCosts(kind_seconds=kinds, any_link=link, exchanges=exchanges)
    return layout, simulate(layout, [one], costs, TINY)


def training(layout: Layout, predicted: Timeline | None, measured: Timeline | None, **result: Any) -> RunRecord:
    stages = tuple(StageSummary(n, one.ranks, one.layers, one.dtype) for n, one in enumerate(layout.stages))
    told = {"task": "train", "kept_steps": [0], **result}
    return RunRecord("", stages, {"name": "tiny"}, (), predicted, _measured(measured), told)


def _measured(timeline: Timeline | None) -> Timeline | None:
    """What was simulated, as if it had been measured; with memory."""
    if timeline is None:
        return None
    memory = {rank: MemoryTrack((0.0,), (2**20,), 2**30, 2**20) for rank in timeline.ranks}
    return replace(timeline, source="measured", memory=memory)


def of(record: RunRecord) -> dict[str, Any]:
    return view_json(make_view(record))


def test_generation_has_the_same_keys_with_and_without_messages_on_the_path():
    still, slow = generated(FREE), generated(SLOW)
    found = [of(generation(*pair)) for pair in ((still, still), (still, slow), (slow, still), (slow, slow))]
    messages = [[one["critical_path"][source]["seconds"]["messages"] > 0 for one in found] for source in SOURCES]
    assert messages == [[False, False, True, True], [False, True, False, True]]
    for one in found:
        for source in SOURCES:
            assert list(one["critical_path"][source]["seconds"]) == OF_GENERATION
        assert list(keys(one)) == list(keys(found[0]))


def test_training_has_the_same_keys_whatever_the_path_is_made_of():
    runs = [
        trained(FREE),
        trained(SLOW),
        trained(FREE, "zb-h1"),
        trained(SLOW, "gpipe", Exchange(5e-4, 100)),
        trained(FREE, reduce_s=1e-3),
    ]
    layout = runs[0][0]
    found = [of(training(layout, before, after)) for _, before in runs for _, after in runs]
    seen = [{what for what, each_s in one["critical_path"]["measured"]["seconds"].items() if each_s} for one in found]
    assert {"messages", "backward_of_inputs", "exchanges", "reductions"} <= set().union(*seen)
    assert {what in one for one in seen for what in ("messages", "backward", "exchanges", "reductions")} == {
        True,
        False,
    }
    for one in found:
        for source in SOURCES:
            assert list(one["critical_path"][source]["seconds"]) == OF_TRAINING
        assert list(keys(one)) == list(keys(found[0]))


def test_what_a_run_did_not_tell_is_none_and_has_its_key():
    layout, timeline = trained(FREE)
    line = {"step": 0, "step_s": 2.0, "tokens_per_s": 8.0, "mfu": 0.5, "predicted": None}
    told, untold = (of(training(layout, timeline, timeline, **each)) for each in ({"steps": [line]}, {}))
    assert told["measured"]["mfu"] > 0
    assert (untold["measured"]["mfu"], untold["measured"]["tokens_per_s"], untold["steps"]) == (None, None, [])
    without = [key for key in keys(told) if not key.startswith(".steps[]")]
    assert without == list(keys(untold))


def test_a_timeline_or_memory_that_is_not_there_is_none():
    slow = generated(SLOW)
    found = of(generation(slow, None))
    assert found["critical_path"]["measured"] is None
    assert found["memory"] == {"predicted": None, "measured": None}
    found = of(generation(None, slow))
    assert found["critical_path"]["predicted"] is None
    assert [one["rank"] for one in found["memory"]["measured"]] == [0, 1]


def test_a_run_without_links_says_none_of_what_it_did_not_do():
    """One stage sends nothing: how far off the prediction of nothing is cannot be told, and its key stays."""
    layout = Layout({"pp": 1}, (Stage((0, 2), (0,)),))
    rounds = [make_round(0, 1, (MicroBatch((Row(0, 0, 0, 64, True),)),), ())]
    alone = simulate(layout, rounds, FixedCosts({0: 1e-3}), TINY)
    plan = dump_plan(Plan("tiny", layout, "layerwise", 1, 64, 128, 1))
    recipes = (RoundRecipe(0, rounds[0].work),)
    stages = (StageSummary(0, (0,), (0, 2), "float32"),)
    found = of(RunRecord(plan, stages, {"name": "tiny"}, recipes, alone, _measured(alone)))
    two = of(generation(generated(SLOW), generated(SLOW)))
    assert (found["off"]["comm_bytes"], found["off"]["transfer_s"], found["off"]["compute_s"]) == (None, None, 0)
    assert list(found["off"]) == list(two["off"])
    assert list(keys(found["measured"])) == list(keys(two["measured"]))


@given(timelines("predicted", 1), timelines("measured", 1), st.sampled_from(["train", "generate"]))
@settings(max_examples=60, deadline=None)
def test_any_path_is_told_whole_and_in_one_order(predicted, measured, task):
    """Also of a run whose actions are another task's: what it has beside its own keys is not lost."""
    view = make_view(RunRecord("", (), predicted=predicted, measured=measured, result={"task": task}))
    usual = OF_TRAINING if task == "train" else OF_GENERATION
    for timeline in view.timelines:
        seconds = view_json(view)["critical_path"][timeline.source]["seconds"]
        assert sum(seconds.values()) == pytest.approx(summarise(timeline).makespan_s, abs=1e-9)
        assert list(seconds) == [what for what in OF_TRAINING if what in seconds]
        assert all(what in usual or seconds[what] > 0 for what in seconds)
        assert set(usual) <= set(seconds)
