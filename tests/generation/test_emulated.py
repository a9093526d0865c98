"""Generation over emulated links: tokens as ever, the record's hosts, and a token's time beside that over the kernel's.

Where two hosts of network namespaces cannot be made, the comparison with them is skipped, and the reason is printed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from plait.comm.emulated import HandOver
from plait.comm.emulated_mesh import emulated_threads
from plait.costs.protocol import LinkCost
from plait.errors import PlanError, SpecError
from plait.generation.answer import Request, answer
from plait.generation.emulated import EmulatedHosts, planned_hosts
from plait.generation.generate import generate
from plait.generation.launch import ProcessRanks, ThreadRanks
from plait.generation.machine import ThisMachine
from plait.generation.planning import Options
from plait.generation.reporting import look_at
from plait.plans.file import dump_plan, plan_from_text, save_plan
from plait.plans.hosts import on_hosts
from plait.plans.plan import Plan
from plait.prober.emulated import OwnLink
from plait.spec.cluster import Wire
from plait.spec.emulation import EmulatedLinks, parse_emulation
from plait.timeline.record import RunRecord
from plait.timeline.timeline import Timeline
from plait.weights.index import WeightsIndex
from tests.generation.agreement import BURSTS, SPLITS, agreement
from tests.generation.namespaces import NoHosts, two_hosts
from tests.generation.splits import split
from tests.generation.test_tokens import FRANCE

LINKS = EmulatedLinks(Wire(1e-3, 12.5e6))
REQUESTS = [Request(tuple(range(1, 70)), 5), Request((3, 1, 4), 5)]


@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_stages_of_tensor_groups_over_emulated_links_answer_as_ever(uneven: WeightsIndex, ranks_per_host: int) -> None:
    plan = split(1, 2, tp=2, slots=2)
    links = EmulatedLinks(Wire(1e-3, 12.5e6), ranks_per_host)

    def emulated(plan: Plan, index: WeightsIndex) -> ThreadRanks:
        ends = emulated_threads(links.among(plan.layout.ranks), plan.layout.link_capacity)
        return ThreadRanks(plan, index, endpoints=ends)

    there, here = answer(plan, uneven, REQUESTS, emulated), answer(plan, uneven, REQUESTS, ThreadRanks)
    assert [one.tokens for one in there.answers] == [one.tokens for one in here.answers]
    assert [one.sent_bytes for one in there.ranks] == [one.sent_bytes for one in here.ranks]


def test_processes_over_emulated_links_answer_as_ever(uneven: WeightsIndex) -> None:
    plan = split(3, tp=2, slots=2)
    ranks: list[ProcessRanks] = []

    def emulated(plan: Plan, index: WeightsIndex) -> ProcessRanks:
        ranks.append(ProcessRanks(plan, index, emulation=LINKS.among(plan.layout.ranks)))
        return ranks[0]

    there, here = answer(plan, uneven, REQUESTS, emulated), answer(plan, uneven, REQUESTS, ThreadRanks)
    assert [one.tokens for one in there.answers] == [one.tokens for one in here.answers]
    assert ranks[0].places.hosts == {0: "host 0", 1: "host 1"}


def test_hosts_of_a_plan_are_emulated_by_name(
    uneven: WeightsIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two of three stages share a host; tokens and bytes are those of the same plan here."""
    monkeypatch.setattr("plait.generation.emulated.own_link", lambda _, say: OwnLink(LinkCost(0.0, 1e12), HandOver()))
    plan = split(1, 1, 1, slots=2)
    there = replace(plan, layout=on_hosts(plan.layout, {0: "left", 1: "left", 2: "right"}))
    save_plan(there, tmp_path / "plan.toml")
    emulated = EmulatedHosts(LINKS, print, planned_hosts(tmp_path / "plan.toml"))
    assert emulated.placed(there) == plan
    assert emulated.words(plan) == "the plan's 2 hosts (left, right), 100 Mb/s and 1 ms between any two"
    ranks: list[ProcessRanks] = []

    def launch(plan: Plan, index: WeightsIndex) -> ProcessRanks:
        ranks.append(emulated.launch(plan, index))
        return ranks[0]

    far, here = answer(plan, uneven, REQUESTS, launch), answer(plan, uneven, REQUESTS, ThreadRanks)
    assert [one.tokens for one in far.answers] == [one.tokens for one in here.answers]
    assert [one.sent_bytes for one in far.ranks] == [one.sent_bytes for one in here.ranks]
    assert ranks[0].places.hosts == {0: "left", 1: "left", 2: "right"}


def test_a_run_of_a_plan_is_kept_on_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.generation.emulated.own_link", lambda _, say: OwnLink(LinkCost(0.0, 1e12), HandOver()))
    plan, hosts = split(1, 1, 1), {0: "left", 1: "left", 2: "right"}
    predicted = Timeline("predicted", ())
    found = EmulatedHosts(LINKS, print, hosts).record(RunRecord(dump_plan(plan), (), {}, (), predicted, None, {}), plan)
    assert [stage.host for stage in plan_from_text(found.plan).layout.stages] == list(hosts.values())
    assert found.predicted == replace(predicted, hosts=hosts)
    assert found.result["emulated"]["names"] == ["left", "right"]
    assert found.result["emulated"]["hosts"] == [0, 0, 1]


def test_ranks_of_a_plans_hosts_cannot_be_counted(tmp_path: Path) -> None:
    """Said before anything is measured, with the whole sentence; a plan on one host may have them."""
    plan = split(15, 15)
    there = replace(plan, model="demo", layout=on_hosts(plan.layout, {0: "left", 1: "right"}))
    save_plan(there, tmp_path / "plan.toml")
    with pytest.raises(SpecError) as caught:
        generate(["Hi"], Options(emulate=EmulatedLinks(LINKS.wire, 2), plan=tmp_path / "plan.toml"))
    assert str(caught.value) == (
        "--emulate has @2, but the plan says itself which ranks share a host (left, right): leave @2 out"
    )
    save_plan(plan, tmp_path / "plan.toml")
    assert planned_hosts(tmp_path / "plan.toml") == planned_hosts(None) == {}


def test_a_launchers_ranks_cannot_be_emulated() -> None:
    with pytest.raises(PlanError) as caught:
        generate(["Hi"], Options(emulate=LINKS), machine=ThisMachine())
    assert str(caught.value) == (
        "--emulate is for ranks that are started here, and a launcher has started these, whose links are real: leave "
        "--emulate out, or run the command without the launcher"
    )


@pytest.mark.soak
@pytest.mark.parametrize(("asked", "hosts"), [({"tp": 2}, [0, 1]), ({"stages": 2}, [0, 1])])
def test_a_run_is_kept_with_its_hosts_and_links(asked: dict[str, int], hosts: list[int], tmp_path: Path) -> None:
    links = parse_emulation("100mbit,1ms")
    options = Options(emulate=links, max_tokens=14, dtype="float32", threads=1, **asked)  # type: ignore[arg-type]
    found = generate(["What is the capital of France?"], options, run=tmp_path / "run", check=True)
    assert [one["tokens"] for one in found.json["requests"]] == [FRANCE]
    assert found.json["measured"]["comm_bytes"] == found.json["predicted"]["comm_bytes"] > 0
    wires = [
        {"source": a, "target": b, "latency_s": 1e-3, "bandwidth_bytes_per_s": 12.5e6} for a, b in ((0, 1), (1, 0))
    ]
    assert found.json["emulated"] == {"hosts": hosts, "names": ["host 0", "host 1"], "wires": wires}
    assert found.record.measured is not None
    assert found.record.predicted is not None
    names = {rank: f"host {host}" for rank, host in enumerate(hosts)}
    assert found.record.measured.hosts == found.record.predicted.hosts == names


@pytest.mark.soak
def test_a_plan_over_several_hosts_answers_as_one_process(tmp_path: Path) -> None:
    plan = split(8, 12, 10, slots=1)
    there = replace(plan, model="demo", layout=on_hosts(plan.layout, {0: "left", 1: "right", 2: "left"}))
    save_plan(there, tmp_path / "plan.toml")
    options = Options(emulate=parse_emulation("100mbit,1ms"), max_tokens=14, plan=tmp_path / "plan.toml")
    found = generate(["What is the capital of France?"], options, run=tmp_path / "run", check=True)
    assert [one["tokens"] for one in found.json["requests"]] == [FRANCE]
    assert found.json["measured"]["comm_bytes"] == found.json["predicted"]["comm_bytes"] > 0
    view = look_at(tmp_path / "run").view
    assert [row.host for row in view.rows] == ["left", "right", "left"]
    assert dict(view.facts)["ranks"] == "3 on 2 hosts"


@pytest.mark.soak
@pytest.mark.parametrize("rate_mbit", [1000, 100])
def test_a_token_takes_as_long_as_over_the_kernels_link(rate_mbit: int, request: pytest.FixtureRequest) -> None:
    """Within 10 %, medians of runs in turns; a second try where others used the machine meanwhile."""
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(two_hosts(f"{rate_mbit}mbit", BURSTS[rate_mbit]))
        except NoHosts as error:
            reporter = request.config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"skipped {request.node.name}: no two hosts here: {error}")
            pytest.skip(f"no two hosts here: {error}")
        found = agreement(hosts, rate_mbit, tuple(SPLITS), 3)
        off = [one.split for one in found if abs(one.ratio - 1) > 0.1]
        again = agreement(hosts, rate_mbit, off, 5) if off else []
    assert [one for one in again if abs(one.ratio - 1) > 0.1] == []
