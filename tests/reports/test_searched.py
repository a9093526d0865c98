"""Why a plan is as it is: what a second search says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.planner.plan import Limits, plan
from plait.planner.result import Choice
from plait.plans.file import PlanFile
from plait.reports.searched import ask_again
from plait.spec.cluster import Cluster
from plait.spec.job import Job, TrainingJob
from plait.spec.presets import cluster_preset, model_preset

SPEC = model_preset("llama3-8b")
JOB = Job(512, 64, 1, 576)


@pytest.fixture(scope="module")
def home() -> Cluster:
    return cluster_preset("home", None)


@pytest.fixture
def searches(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Every search answers with `choice`, at once; what it was asked."""
    asked: list[tuple[object, ...]] = []

    def search(spec: object, cluster: object, job: object, objective: object, **options: object) -> Choice:
        asked.append((job, objective, options))
        return choice

    monkeypatch.setattr("plait.reports.searched.make_plan", search)
    return asked


@pytest.fixture(scope="module")
def choice(home: Cluster) -> Choice:
    return plan(SPEC, home, JOB)


def test_the_chosen_plan_is_told_with_the_search_s_reasons(home: Cluster, choice: Choice) -> None:
    why = ask_again(PlanFile(choice.chosen.plan, home, JOB), SPEC)
    assert why.reasons[0] == choice.reason
    assert why.reasons[1] == choice.break_even[0].text
    assert why.missing == ()
    kinds = {one.kind for one in choice.candidates} - {choice.chosen.kind}
    assert {one.kind.split(" (")[0] for one in why.lost if one.figure != "cannot be"} == kinds
    rejected = [one for one in why.lost if one.figure == "cannot be"]
    assert len(rejected) == min(4, len(choice.rejected))
    assert all(one.loses for one in why.lost)


def test_a_plan_made_with_limits_is_told_what_it_costs(
    home: Cluster, choice: Choice, searches: list[tuple[object, ...]]
) -> None:
    forced = plan(SPEC, home, JOB, limits=Limits(pp=3)).chosen.plan
    why = ask_again(PlanFile(forced, home, JOB), SPEC)
    assert [objective for _, objective, _ in searches] == ["latency", "throughput", "ttft"]
    assert why.reasons[0] == forced.reason
    beginning = f"This is not what a search without limits chooses for the time of a token: {choice.chosen.kind}"
    assert why.reasons[1].startswith(beginning)
    assert "; this plan is number " in why.reasons[1]
    assert why.lost


@pytest.mark.usefixtures("searches")
def test_a_plan_that_no_search_ranks_says_so(home: Cluster, choice: Choice) -> None:
    odd = replace(choice.chosen.plan, micro_batches=7, reason="by hand")
    why = ask_again(PlanFile(odd, home, JOB), SPEC)
    assert why.reasons[0] == "by hand"
    assert why.reasons[1].endswith(f"; this plan is not among the {len(choice.candidates)} that it ranks")


@pytest.mark.soak
def test_training_is_searched_as_training() -> None:
    cluster, spec = cluster_preset("a100", 8), model_preset("gpt2")
    found = plan(spec, cluster, TrainingJob(16, 512, "bfloat16"))
    why = ask_again(PlanFile(found.chosen.plan, cluster), spec)
    assert why.reasons[0] == found.reason
    assert why.lost


def test_a_plan_of_this_machine_has_its_own_reason(choice: Choice) -> None:
    assert ask_again(PlanFile(replace(choice.chosen.plan, reason="measured here")), SPEC) == (
        ("measured here",),
        (),
        (),
    )
    asked = ("The split was asked for: nothing was searched.",)
    assert ask_again(PlanFile(replace(choice.chosen.plan, reason="")), SPEC) == (asked, (), ())


def test_a_search_that_ends_in_an_error_is_said(home: Cluster, choice: Choice) -> None:
    long = replace(JOB, prompt_tokens=10_000_000, context=10_000_064)
    why = ask_again(PlanFile(choice.chosen.plan, home, long), SPEC)
    assert why.reasons == (choice.chosen.plan.reason,)
    assert why.lost == ()
    assert len(why.missing) == 1
    assert why.missing[0].startswith("Why other ways lose is not told, since the search ended: ")
