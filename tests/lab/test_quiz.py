"""The lab's quiz: a wrong prediction is found, and the short form holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from plait.lab import quiz
from plait.lab.answers import Bench
from plait.lab.benches import opened
from plait.lab.experiment import Outcome
from plait.lab.links import named_link
from plait.lab.quiz import Answered, Found, Seen, asked, judged, measure
from plait.spec.cluster import Device

from .figures import broken, figures

CORE = Device("core", "core", 1, {"float32": 5e10}, 1e9, "measured")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with opened("short", lambda words: None) as made:
        yield made


@pytest.fixture(scope="module")
def answered(bench: Bench) -> Answered:
    """The planner on two machines that compute as fast as a small model needs."""
    return asked(bench, CORE, named_link("100 Mb/s and 2 ms", "short").link)


@pytest.fixture
def found(answered: Answered) -> Found:
    """As if all had been measured as the planner says."""
    best = quiz._best(answered.choice)
    seen = []
    for candidate in (best["pipeline"], best["tensor"]):
        predicted = candidate.predicted
        stages = [predicted["compute_s"]] * len(candidate.cut)
        measured = figures(predicted["time_per_token_s"], predicted["comm_bytes"], *stages)
        seen.append(Seen(candidate, measured, figures(sum(stages), predicted["comm_bytes"], *stages)))
    return Found(answered.choice, answered.alone, tuple(seen), figures(answered.alone_s), answered.alone_s)


def test_neither_machine_holds_the_model_and_both_together_do(answered: Answered) -> None:
    choice, alone = answered.choice, answered.alone

    assert alone.need > alone.have
    assert alone.reason.startswith("not enough memory: ")
    assert {one.kind for one in choice.candidates} == {"pipeline", "tensor"}
    assert all(one.need_bytes <= alone.have for candidate in choice.candidates for one in candidate.memory)
    assert choice.chosen.kind == "pipeline"


def test_over_a_link_that_costs_next_to_nothing_the_planner_says_otherwise(bench: Bench) -> None:
    """So that the answer is no foregone one."""
    slow = replace(CORE, memory_bandwidth=1e7)

    assert asked(bench, slow, named_link("10 Gb/s", "full").link).choice.chosen.kind == "tensor"


def test_what_is_as_predicted_holds_and_is_said(found: Found) -> None:
    outcome = judged(found, "full")

    assert outcome.holds
    assert outcome.sentence.startswith(
        "Each machine has 350.6 MiB and the model needs 350.7 MiB; the planner splits it as"
    )
    assert [row[-1] for row in outcome.table.rows] == ["no", "no", "yes", "-"]
    assert {len(row) for row in outcome.table.rows} == {len(outcome.table.headings)}
    assert found.alone.reason in outcome.notes[0]


def test_what_a_link_adds_is_latency_and_bytes_over_bandwidth(found: Found) -> None:
    wire = named_link("100 Mb/s and 2 ms", "short").link.wire
    pipeline, tensor = found.ways

    assert pipeline.link_s == pytest.approx(2 * wire.latency_s, rel=0.01)  # there with activations, back with a token
    exchanges = 2 * 4 + 2  # two sums in each of four layers, one of the embedding, and the token's candidates
    assert tensor.link_s == pytest.approx(exchanges * wire.latency_s, rel=0.01)
    assert pipeline.predicted_s == pytest.approx(pipeline.planned_s)


def test_a_host_that_is_slower_than_it_was_is_no_fault_of_the_link(found: Found) -> None:
    slow = found.ways[0]
    add_s = 0.3 * slow.measured.round_s
    slow = slow._replace(
        measured=slow.measured._replace(round_s=slow.measured.round_s + add_s),
        near=slow.near._replace(round_s=slow.near.round_s + add_s),
    )

    assert broken(judged(altered(found, 0, slow), "full")) == []


def test_a_planner_that_is_far_off_is_found(found: Found) -> None:
    slow = found.ways[0]
    add_s = 1.2 * slow.measured.round_s
    slow = slow._replace(
        measured=slow.measured._replace(round_s=slow.measured.round_s + add_s),
        near=slow.near._replace(round_s=slow.near.round_s + add_s),
    )

    assert broken(judged(altered(found, 0, slow), "full")) == ["pipeline as planned from the probe"]


def altered(found: Found, which: int, seen: Seen) -> Found:
    ways = list(found.ways)
    ways[which] = seen
    return replace(found, ways=tuple(ways))


def test_a_choice_that_is_not_the_fastest_is_found(found: Found) -> None:
    quick = found.ways[1]._replace(measured=found.ways[1].measured._replace(round_s=1e-3))

    assert broken(judged(altered(found, 1, quick), "full")) == [
        "the planner's choice against the fastest way measured",
        "tensor over 100 Mb/s and 2 ms",
    ]


def test_bytes_that_nobody_predicted_are_found(found: Found) -> None:
    more = found.ways[0].measured._replace(sent_bytes=found.ways[0].measured.sent_bytes + 4)

    assert broken(judged(altered(found, 0, found.ways[0]._replace(measured=more)), "full")) == [
        "bytes a token, pipeline"
    ]


def test_machines_that_are_busy_where_they_should_idle_are_found(found: Found) -> None:
    busy = found.ways[0].measured._replace(bubble=0.6)

    assert broken(judged(altered(found, 0, found.ways[0]._replace(measured=busy)), "full")) == [
        "idle share of both machines, pipeline"
    ]


def run(size: str = "short") -> Outcome:
    said: list[str] = []
    outcome = measure(size, said.append)  # type: ignore[arg-type]
    assert said[-1] == "a tensor split over 100 Mb/s and 2 ms and over shared memory"
    return outcome


def test_the_short_form_holds() -> None:
    outcome = run()

    assert broken(outcome) == []
    assert len(outcome.checks) == 1 + 2 * 3
