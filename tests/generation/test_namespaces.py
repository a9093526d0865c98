"""The demo model over two hosts with a 1 Gb/s link between them, each started by its own torchrun.

Where two hosts cannot be made (no root, no `ip` or `tc`) these tests are skipped, and the reason is printed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.plans.file import dump_plan
from tests.generation.namespaces import INTERFACE, NoHosts, TwoHosts, cluster_of, on_devices, two_hosts
from tests.generation.splits import split
from tests.generation.test_tokens import FRANCE, GRAVITY

GENERATE = ("-m", "plait", "generate")
DEMO = ("--model", "demo", "--dtype", "float32", "--threads", "1", "--max-tokens", "14")


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[TwoHosts]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(two_hosts())
        except NoHosts as error:
            reporter = request.config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"skipped {request.node.name}: no two hosts here: {error}")
            pytest.skip(f"no two hosts here: {error}")
        yield made


def generated(hosts: TwoHosts, ranks: int, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What rank 0 says as JSON; the others have ended well, and said nothing on standard output."""
    where = ("--json", "--run", str(tmp_path / "run"))
    first, second = hosts.torchrun(ranks, *GENERATE, *where, *arguments, timeout_s=200)
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    return dict(json.loads(first.stdout))


def require_bytes(result: dict[str, Any]) -> None:
    assert result["measured"]["comm_bytes"] == result["predicted"]["comm_bytes"] > 0


def test_stages_on_two_hosts(hosts: TwoHosts, tmp_path: Path) -> None:
    """A plan file that has the cluster in it: nothing is calibrated."""
    cluster = cluster_of(1, 30e9, 10e9, 150e-6, 5e9)
    plan = on_devices(replace(split(15, 15, schedule="layerwise", slots=1), model="demo"), cluster)
    (tmp_path / "plan.toml").write_text(dump_plan(plan, cluster))
    given = ("--plan", str(tmp_path / "plan.toml"), "--max-tokens", "8", "What is the capital of France?")
    result = generated(hosts, 1, tmp_path, *given)
    assert [one["tokens"] for one in result["requests"]] == [FRANCE]
    assert [one["ranks"] for one in result["plan"]["stages"]] == [[0], [1]]
    require_bytes(result)
    # to the second stage 576 values of 4 bytes for each position, and one token of 8 bytes for each answered
    positions = result["requests"][0]["prompt_tokens"] + len(FRANCE) - 1
    assert result["measured"]["comm_bytes"] == positions * 576 * 4 + len(FRANCE) * 8


@pytest.mark.soak
@pytest.mark.parametrize(
    ("ranks", "given", "pp", "tp"),
    [
        (2, [], 2, 2),  # stages between hosts, tensor groups inside: what it chooses itself
        (2, ["--sequence"], 2, 2),
        (2, ["--pp", "4"], 4, 1),
        (2, ["--tp", "4"], 1, 4),
        (1, ["--tp", "2"], 1, 2),  # a tensor group over the link, for the record
        (1, ["--pp", "2"], 2, 1),
    ],
)
def test_the_tokens_of_one_process(
    hosts: TwoHosts, tmp_path: Path, ranks: int, given: list[str], pp: int, tp: int
) -> None:
    (tmp_path / "prompts").write_text("What is the capital of France?\nWhat is gravity?\n")
    result = generated(hosts, ranks, tmp_path, *DEMO, *given, "--prompt-file", str(tmp_path / "prompts"))
    assert [one["tokens"] for one in result["requests"]] == [FRANCE, GRAVITY]
    assert (len(result["plan"]["stages"]), result["plan"]["tp"]) == (pp, tp)
    require_bytes(result)


def soon(found: Callable[[], bool], seconds: float) -> float:
    """Seconds until `found` says so."""
    start_s = time.monotonic()
    while not found():
        assert time.monotonic() - start_s < seconds, f"not within {seconds:g} s"
        time.sleep(0.05)
    return time.monotonic() - start_s


@pytest.mark.soak
@pytest.mark.parametrize("rank", [2, 3])
def test_a_rank_of_the_other_host_is_killed(hosts: TwoHosts, tmp_path: Path, rank: int) -> None:
    """Rank 0 names it soon, and whatever was started on both hosts ends."""
    question = (
        "--layers",
        "15,15",
        "--tp",
        "2",
        "--context",
        "4096",
        "--max-tokens",
        "4000",
        "--run",
        str(tmp_path / "run"),
        "Tell a very long story.",
    )
    hosts.start_torchrun(2, *GENERATE, *DEMO[:-2], *question)
    soon(lambda: "layers 0 to 14, 15 to 29" in hosts.said(0), 150)
    time.sleep(4)
    victim = hosts.process_of(rank)
    assert victim is not None
    victim.kill()
    soon(lambda: f"error: rank {rank} (host 1, stage 1, layers 15 to 29, tensor rank" in hosts.said(0), 10)
    first, second = hosts.finished(60)
    assert first.status != 0
    assert second.status != 0
    assert f", tensor rank {rank - 2} of 2) was lost: " in first.stderr


# --- the hosts themselves ---------------------------------------------------------------------------------


def namespaces_of(hosts: TwoHosts) -> set[str]:
    """Those of its namespaces that there are."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line} & set(hosts.namespaces)


def test_two_runs_never_meet_and_nothing_is_left(hosts: TwoHosts) -> None:
    def run_and_fail(held: list[TwoHosts]) -> None:
        with two_hosts() as others:
            held.append(others)
            others.start(1, "sleep", "600")
            assert not set(others.namespaces) & set(hosts.namespaces)
            assert namespaces_of(others) == set(others.namespaces)
            raise RuntimeError("a test that fails")

    held: list[TwoHosts] = []
    with pytest.raises(RuntimeError, match="a test that fails"):
        run_and_fail(held)
    assert namespaces_of(held[0]) == set()
    assert held[0].ended
    assert namespaces_of(hosts) == set(hosts.namespaces)


def test_the_kernel_shapes_the_link_both_ways(hosts: TwoHosts) -> None:
    for namespace in hosts.namespaces:
        shown = subprocess.run(
            ["tc", "-n", namespace, "qdisc", "show", "dev", INTERFACE], capture_output=True, text=True, check=True
        )
        assert "tbf" in shown.stdout
        assert "rate 1Gbit" in shown.stdout


def test_why_there_are_no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(NoHosts) as caught, two_hosts():
        pass
    assert str(caught.value) == "`ip` and `tc` not found: apt-get install -y iproute2"
