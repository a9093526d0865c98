"""The lab's braid: its layouts, bytes by axis, its short form, and that a wrong formula makes it fail."""

from __future__ import annotations

from itertools import permutations
from math import prod

import pytest

from plait.comm.emulated_mesh import emulated_threads
from plait.lab import braid
from plait.lab.braid import AXES, SIZES, SPEC, Sizes, make_case, steps
from plait.lab.run import run_experiments
from plait.lab.talking import Talks, bytes_by_axis, one_thread_each
from plait.lab.waiting import on_threads
from plait.plans.training_exchanges import step_bytes
from plait.schedules.prove import prove_training_plan
from plait.spec.cluster import Wire
from plait.spec.emulation import Emulation
from plait.spec.tensors import stage_tensors

ORDERS = list(permutations(AXES))


@pytest.mark.parametrize("order", ORDERS)
def test_the_outermost_axis_crosses_the_hosts_and_no_other(order: tuple[str, ...]) -> None:
    case = make_case(order, SIZES["short"])
    layout, hosts = case.plan.layout, case.emulation().hosts
    prove_training_plan(case.plan, SPEC)
    assert sorted(rank for stage in layout.stages for rank in stage.ranks) == list(range(8))
    groups = {
        "tp": [stage.ranks[at : at + 2] for stage in layout.stages for at in (0, 2)],
        "dp": [stage.ranks[at::2] for stage in layout.stages for at in (0, 1)],
        "pp": list(zip(layout.stages[0].ranks, layout.stages[1].ranks, strict=True)),
    }
    crossing = {axis for axis, held in groups.items() if any(hosts[one] != hosts[other] for one, other in held)}
    assert crossing == {case.crossing} == {order[0]}
    assert all(hosts[one] != hosts[other] for one, other in groups[order[0]])


def test_bytes_are_those_of_the_rules_and_of_the_formula() -> None:
    case = make_case(("tp", "pp", "dp"), SIZES["short"])
    found = steps(case)
    rule = step_bytes(SPEC, case.plan, 1)
    norm = {"dp": 8 * 6 * 56, "pp": 0, "tp": 8 * 56}  # every step of the trainer has one, and this has none
    assert found.measured_bytes == {axis: rule[axis] - norm[axis] for axis in AXES}
    numbers = case.sizes.tokens * SPEC.hidden * case.sizes.micro_batches
    learned = sum(prod(shape) for shape in stage_tensors(SPEC, 0, SPEC.layers).values())
    assert found.measured_bytes["pp"] == 2 * 2 * 4 * numbers
    assert found.measured_bytes["dp"] == pytest.approx(2 * 4 * learned, rel=0.01)  # norms are whole on both ranks
    assert found.measured_bytes["tp"] == pytest.approx(2 * 2 * 4 * numbers * (4 * 2 + 2 + 1), rel=0.02)


def test_the_short_form_holds_and_says_what_it_found() -> None:
    found = run_experiments(["braid"], "short")
    (outcome,) = found.outcomes
    assert found.holds
    assert len(outcome.checks) == 6 + 1 + 18
    assert outcome.sentence.startswith("A step took, by the axis between the hosts: dp 503 ms (0.4 MB sent), pp ")
    assert outcome.sentence.endswith("tp belongs inside a host, and here dp crosses the slow link at the least cost.")
    assert len(outcome.table.rows) == 6


@pytest.mark.parametrize(
    ("name", "wrong", "failing"),
    [
        ("over_wire_s", lambda sent_bytes, turns: 0.0, {"step with dp × pp × tp, the first between hosts"}),
        ("wire_s", lambda case, sent: 2 * sent[case.crossing] / braid.WIRE.bandwidth, {"step with tp × dp × pp"}),
        ("reduced_bytes", lambda *given: 4000, {"dp sends with tp × pp × dp"}),
    ],
)
def test_a_wrong_formula_makes_it_fail(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: object, failing: set[str]
) -> None:
    monkeypatch.setattr(braid, "BOUND", 0.1)
    monkeypatch.setattr(braid, name, wrong)
    failed = {check.what for check in run_experiments(["braid"], "short").outcomes[0].checks if not check.holds}
    assert all(any(one.startswith(what) for one in failed) for what in failing), failed


def test_threads_over_emulated_links_send_what_the_rules_say() -> None:
    case = make_case(("dp", "pp", "tp"), Sizes(16, 2, 0.0, 1))
    wire = Wire(1e-3, 1e8)
    emulation = Emulation(case.emulation().hosts, {(0, 1): wire, (1, 0): wire})
    endpoints = emulated_threads(emulation, case.plan.layout.link_capacity)
    with one_thread_each():
        measured = on_threads(
            case.plan.layout,
            case.round(),
            endpoints,
            lambda rank: Talks(braid.computing(case), case.plan, SPEC, rank, endpoint=endpoints[rank]),
        )
    virtual = steps(case._replace(sizes=case.sizes._replace(most_steps=0)))
    assert bytes_by_axis(measured) == virtual.predicted_bytes == virtual.measured_bytes
