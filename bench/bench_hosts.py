"""Two hosts with a 1 Gb/s link between them: stages and tensor groups over it, beside what the planner says of them."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import OpenModel, demo, make_plan, table

from plait.comm.cluster import join
from plait.comm.contract import Endpoint, Group
from plait.comm.launcher import Environment, environment
from plait.comm.measure import measure_link
from plait.costs.protocol import LinkCost
from plait.costs.serving import ServingModel
from plait.generation.opened import Opened
from plait.planner.plan import plan as choose
from plait.plans.file import dump_plan
from plait.plans.plan import Plan
from plait.prober.links import measure_shm_link
from plait.spec.cluster import Cluster
from plait.spec.job import Job

sys.path.insert(0, str(Path(__file__).parents[1]))  # the hosts are those of the tests

from tests.generation.namespaces import Finished, NoHosts, TwoHosts, cluster_of, on_devices, two_hosts

PROMPT = "word " * 127
TOKENS = 32
TIMEOUT_S = 120.0
SUM_BYTES = (4 * 576, 128 * 4 * 576)
"""One sum of the demo model's activations: of one token, of the prompt."""

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Case:
    name: str
    ranks_a_host: int
    plan: Plan


CASES = (
    Case("stages between hosts, tensor groups inside: pp 2 × tp 2", 2, make_plan([15, 15], tp=2)),
    Case("stages between hosts: pp 2", 1, make_plan([15, 15])),
    Case("a tensor group over the link: tp 2", 1, make_plan([30], tp=2)),
)


# what the planner is told of these hosts


@dataclass(frozen=True)
class Figures:
    """One core alone, the link between the hosts, and shared memory in them."""

    token_s: float
    prefill_s: float
    prompt_tokens: int
    between: LinkCost
    within: LinkCost
    sums_s: Sequence[float]

    def cluster(self, opened: Opened, ranks: int) -> Cluster:
        """FLOP/s and bytes/s are those at which the roofline gives what one core took for the whole model."""
        model = ServingModel(opened.spec, cluster_of(1, 1e12, 1e12, 1e-4, 1e9), "float32")
        layers = sum(model.weight_bytes(layer) for layer in range(opened.spec.layers))
        flops = 2 * layers / 4 * self.prompt_tokens / self.prefill_s
        rate = (layers + model.last_bytes()) / self.token_s
        return cluster_of(ranks, flops, rate, self.between.latency_s, self.within.bandwidth_bytes_per_s)


def measured_figures(hosts: TwoHosts, opened: Opened) -> Figures:
    prompt = opened.encode(PROMPT, chat=False)
    with OpenModel(opened, make_plan([30])) as model:
        timings = [model.ask([prompt], TOKENS) for _ in range(3)][1:]
    link = json.loads(_succeeded(hosts.torchrun(1, __file__, timeout_s=TIMEOUT_S)).stdout)
    return Figures(
        1 / statistics.fmean(one.decode_tokens_per_s for one in timings),
        statistics.fmean(one.prefill_s for one in timings),
        len(prompt),
        LinkCost(*link["link"]),
        measure_shm_link(1, 2, "float32"),
        link["sums"],
    )


def probe(here: Environment) -> None:
    """What a rank of the link's measurement does: rank 0 prints what it found."""
    with join(here, 64) as endpoint:
        cost = measure_link(endpoint, 1 - here.rank)
        sums = [_sum_s(endpoint, size) for size in SUM_BYTES]
    if here.rank == 0:
        sys.stdout.write(json.dumps({"link": [cost.latency_s, cost.bandwidth_bytes_per_s], "sums": sums}))


def _sum_s(endpoint: Endpoint, size: int) -> float:
    group, tensor = Group(tuple(range(endpoint.size))), torch.ones(size // 4)
    taken = []
    for _ in range(60):
        start = time.perf_counter()
        endpoint.all_reduce(group, tensor)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[10:])


# runs


def generate(hosts: TwoHosts, case: Case, cluster: Cluster) -> Mapping[str, Any]:
    """One answer; predicted from the cluster that the plan file has in it."""
    plan = on_devices(case.plan, cluster)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.toml"
        file.write_text(dump_plan(plan, cluster))
        where = ("--plan", str(file), "--run", str(Path(folder) / "run"), "--max-tokens", str(TOKENS))
        ended = hosts.torchrun(
            case.ranks_a_host, "-m", "plait", "generate", "--json", "--raw", *where, PROMPT, timeout_s=TIMEOUT_S
        )
    return dict(json.loads(_succeeded(ended).stdout))


def _succeeded(ended: tuple[Finished, Finished]) -> Finished:
    for one in ended:
        if one.status:
            raise SystemExit(f"torchrun ended with status {one.status}:\n{one.stderr}")
    return ended[0]


# the section


def row(case: Case, result: Mapping[str, Any]) -> list[object]:
    measured, predicted = result["measured"], result["predicted"]
    if measured["comm_bytes"] != predicted["comm_bytes"]:
        raise SystemExit(f"{case.name}: measured bytes are not the predicted ones: {result}")
    figures: list[object] = []
    for key, factor in (("time_per_token_s", 1e3), ("decode_tokens_per_s", 1.0), ("prefill_tokens_per_s", 1.0)):
        figures += [factor * measured[key], factor * predicted[key]]
    return [case.name, *figures, measured["comm_bytes"] / 1e6]


def planner_words(opened: Opened, figures: Figures) -> str:
    """What the planner makes of two such hosts with one device each, and with two."""
    lines = []
    for ranks, what in ((1, "one core each"), (2, "two cores each")):
        cluster = figures.cluster(opened, ranks)
        choice = choose(opened.spec, cluster, Job(figures.prompt_tokens, TOKENS), "latency", dtype="float32")
        others = {one.kind: 1e3 * one.predicted["time_per_token_s"] for one in choice.candidates[1:]}
        best = choice.candidates[0]
        told = ", ".join(f"{kind} {value:.3g} ms" for kind, value in others.items())
        lines.append(
            f"- {what}: {best.kind}, {1e3 * best.predicted['time_per_token_s']:.3g} ms a token"
            + (f"; the best of other kinds: {told}." if told else ".")
        )
    return "\n".join(["`plait plan` for two such hosts, one user:", "", *lines])


def section(hosts: TwoHosts) -> str:
    opened = demo()
    figures = measured_figures(hosts, opened)
    rows = [row(case, generate(hosts, case, figures.cluster(opened, case.ranks_a_host))) for case in CASES]
    alone = ["one process on one core, no link", 1e3 * figures.token_s, "", 1 / figures.token_s, ""]
    rows.append([*alone, figures.prompt_tokens / figures.prefill_s, "", 0])
    headings = ["", "ms a token", "predicted", "tokens/s", "predicted", "prompt tokens/s", "predicted", "MB sent"]
    stages, group = rows[1], rows[2]
    return "\n\n".join(
        [
            "## Two hosts and 1 Gb/s",
            "Two network namespaces on this machine, joined by a link that the kernel holds to 1 Gb/s each way\n"
            "(`tc tbf`); `torchrun` in each, the demo model in float32, one thread a rank, all on this machine's\n"
            f"cores, a prompt of {figures.prompt_tokens} tokens and {TOKENS} answered, one run each. A run's first\n"
            "prompt is its only one, so the kernels' first use is in it. Bytes sent were the predicted ones exactly.",
            table(headings, rows),
            f"Predicted from a plan file with these figures: a core as the last line has it; the link 1 Gb/s with the\n"
            f"{1e6 * figures.between.latency_s:.0f} µs that a message was measured to take (its bandwidth measured: "
            f"{figures.between.bandwidth_bytes_per_s / 125e6:.2f} Gb/s). Sums over the\n"
            f"link, alone: {1e6 * figures.sums_s[0]:.0f} µs for one token's {SUM_BYTES[0]} bytes, "
            f"{1e3 * figures.sums_s[1]:.1f} ms for {SUM_BYTES[1] // 1024} KB; a layer takes two.",
            f"A tensor group over this link takes {group[1]:.3g} ms a token, two stages {stages[1]:.3g} ms, one core\n"
            f"alone {1e3 * figures.token_s:.3g} ms (predicted: {group[2]:.3g} and {stages[2]:.3g} ms).",
            planner_words(opened, figures),
        ]
    )


def main() -> None:
    here = environment()
    if here is not None:
        probe(here)
        return
    try:
        with two_hosts() as hosts:
            text = section(hosts)
    except NoHosts as error:
        text = f"## Two hosts and 1 Gb/s\n\nNot measured: {error}."
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
