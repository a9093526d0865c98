"""Ranks that a launcher has started: the tokens of one process, and every way in which they may not fit together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from plait.comm.launcher import Environment
from plait.comm.threads import thread_mesh
from plait.costs.protocol import FixedCosts, LinkCost, Running
from plait.errors import PlanError, RunError, WeightsError
from plait.generation.answer import Outcome, Request, answer
from plait.generation.planning import Options
from plait.generation.torchrun_costs import HostsCosts, on_this_host
from plait.generation.torchrun_follower import FollowerRank, greeting
from plait.generation.torchrun_hosts import Hosts, chosen_words, crossing_words, filled_in
from plait.generation.torchrun_lead import Mesh, TorchrunRanks
from plait.generation.torchrun_protocol import CAPACITY, Greeting, Ping
from plait.plans.plan import Plan
from plait.ranks.same_model import Fingerprint, require_same
from plait.weights.index import WeightsIndex, open_index
from tests.generation.llamas import save_llama
from tests.generation.splits import split, tokens_of
from tests.generation.test_tensor import require_bytes_by_rule
from tests.generation.test_tokens import FRANCE, GRAVITY

GIB = 1 << 30
REQUESTS = [Request(tuple(range(1, 90)), 6), Request((5, 6, 7), 9), Request((9,), 4, logits=True)]


def hosts_of(*counts: int, names: Sequence[str] = (), cores: int = 8, free: int = GIB) -> Hosts:
    """Hosts with so many ranks each, one after the other."""
    nodes = [node for node, count in enumerate(counts) for _ in range(count)]
    return Hosts(
        [
            Greeting(rank, node, names[node] if names else "same", counts[node], cores, free)
            for rank, node in enumerate(nodes)
        ]
    )


def environment_of(rank: int, counts: Sequence[int]) -> Environment:
    nodes = [(node, place) for node, count in enumerate(counts) for place in range(count)]
    node, place = nodes[rank]
    return Environment(rank, len(nodes), place, counts[node], node, len(counts), "one", 29500, "torchrun")


class Others:
    """All ranks but rank 0, each a thread; and the mesh that rank 0 has with them."""

    def __init__(self, counts: Sequence[int], model: Path, other: Path | None = None) -> None:
        endpoints = thread_mesh(sum(counts), CAPACITY)
        self.ended: dict[int, object] = {}
        self._threads = []
        for rank in range(1, len(endpoints)):
            options = Options(model=str(other if other is not None and rank == 1 else model))
            target = partial(self._serve, endpoints[rank], options, environment_of(rank, counts))
            self._threads.append(threading.Thread(target=target, daemon=True))
            self._threads[-1].start()
        self.mesh = Mesh(endpoints[0], greeting(environment_of(0, counts)))

    def _serve(self, endpoint, options, here) -> None:  # type: ignore[no-untyped-def]
        try:
            with endpoint:
                self.ended[here.rank] = FollowerRank(endpoint, options).serve(here)
        except BaseException as error:
            self.ended[here.rank] = error

    def answer(self, plan: Plan, index: WeightsIndex, requests: list[Request]) -> Outcome:
        return answer(self.mesh.hosts.placed(plan), index, requests, partial(TorchrunRanks, mesh=self.mesh))

    def join(self) -> dict[int, object]:
        for thread in self._threads:
            thread.join(20)
        return self.ended


class TestOverThreads:
    @pytest.mark.parametrize(
        ("plan", "counts"),
        [
            (split(2, 4, tp=2, context=192), (2, 2)),
            (split(6, tp=3, context=192), (1, 2)),  # a tensor group over two hosts
            (split(1, 2, 3, context=192, micro_batches=2), (1, 1, 1)),
            (split(6, context=192), (1,)),
        ],
        ids=["pp2-tp2", "tp3", "pp3", "alone"],
    )
    def test_the_tokens_and_bytes_of_one_process(
        self, tiny: WeightsIndex, tiny_directory: Path, plan: Plan, counts: tuple[int, ...]
    ) -> None:
        """Two sessions, one after the other, as --verify has them."""
        others = Others(counts, tiny_directory)
        wanted = tokens_of(split(6, context=192), tiny, REQUESTS)
        for _ in range(2):
            outcome = others.answer(plan, tiny, REQUESTS)
            assert [one.tokens for one in outcome.answers] == wanted
            assert len(outcome.answers[2].logits) == 4
            require_bytes_by_rule(plan, outcome, tiny)
        names = {f"host {number}" for number in range(len(counts))} if len(counts) > 1 else set()
        assert set(outcome.measured.hosts.values()) == (names or {others.mesh.hosts.name(0)})
        # all hosts are this one: their clocks are the same, within the round trip
        for clock in others.mesh.clocks.values():
            assert abs(clock.offset_s) <= clock.error_s < 0.5
        assert set(others.mesh.clocks) == names - {"host 0"}
        others.mesh.leave(failed=False)
        assert others.join() == dict.fromkeys(range(1, sum(counts)), True)

    def test_a_failed_end(self, tiny_directory: Path) -> None:
        others = Others((1, 2), tiny_directory)
        others.mesh.leave(failed=True)
        assert others.join() == {1: False, 2: False}

    def test_links_between_any_two(self, tiny_directory: Path) -> None:
        others = Others((1, 1, 1), tiny_directory)
        one, other = others.mesh.link(0, 2), others.mesh.link(2, 1)
        assert others.mesh.link(2, 0) is one
        assert other.latency_s > 0
        assert other.buffered
        others.mesh.leave(failed=False)
        others.join()

    def test_a_rank_with_another_model(self, tiny: WeightsIndex, uneven: WeightsIndex, tiny_directory: Path) -> None:
        others = Others((1, 1), tiny_directory, Path(uneven.source))
        with pytest.raises(WeightsError) as error:
            others.answer(split(3, 3, context=192), tiny, REQUESTS)
        assert str(error.value) == (
            f"rank 1 (host 1, stage 1, layers 3 to 5): the model in {uneven.source} is not the one that rank 0 has: "
            "intermediate is 161, there 160; layers is 3, there 6; tied is True, there False and 13 more. "
            "Put the same files on every host, and give their place there with --model where it is another"
        )
        assert isinstance(others.join()[1], WeightsError)

    def test_what_breaks_on_another_rank_is_told(self, tiny: WeightsIndex, tiny_directory: Path) -> None:
        others = Others((1, 1), tiny_directory, tiny_directory / "nowhere")
        with pytest.raises(WeightsError) as error:
            others.answer(split(3, 3, context=192), tiny, REQUESTS)
        assert str(error.value).startswith("rank 1 (host 1, stage 1, layers 3 to 5): ")
        assert str(tiny_directory / "nowhere") in str(error.value)


class TestModels:
    def test_the_same_elsewhere(self, tiny: WeightsIndex, tiny_directory: Path, tmp_path: Path) -> None:
        copied = open_index(shutil.copytree(tiny_directory, tmp_path / "copied"))
        require_same(Fingerprint.of(copied), Fingerprint.of(tiny), "there")

    def test_other_values(self, tiny: WeightsIndex, tmp_path: Path) -> None:
        torch.manual_seed(8)
        LlamaForCausalLM(LlamaConfig.from_pretrained(tiny.source)).save_pretrained(tmp_path)
        with pytest.raises(WeightsError) as error:
            require_same(Fingerprint.of(open_index(tmp_path)), Fingerprint.of(tiny), "there")
        assert str(error.value) == (
            "the model in there is not the one that rank 0 has: its weights have other values. "
            "Put the same files on every host, and give their place there with --model where it is another"
        )


class TestHosts:
    def test_names(self) -> None:
        assert hosts_of(2, 1).names == {0: "host 0", 1: "host 0", 2: "host 1"}
        assert hosts_of(2, 1, names=("ant", "bee")).names == {0: "ant", 1: "ant", 2: "bee"}
        assert hosts_of(3).names == {}

    @pytest.mark.parametrize(
        ("options", "counts", "right"),
        [
            (Options(), (2, 2), (2, 2)),
            (Options(), (3,), (1, 3)),
            (Options(), (1, 1, 1), (3, 1)),
            (Options(), (2, 1), (3, 1)),
            (Options(stages=2), (4,), (2, 2)),
            (Options(tp=4), (2, 2), (1, 4)),
            (Options(shares=(2, 1)), (2, 2), (2, None)),
            (Options(stages=3), (2, 2), (3, None)),  # refused later
            (Options(layers=(1, 2)), (2, 2), (None, 2)),
        ],
    )
    def test_stages_between_and_groups_inside(
        self, options: Options, counts: tuple[int, ...], right: tuple[int, int]
    ) -> None:
        filled = filled_in(options, hosts_of(*counts))
        assert (filled.stages, filled.tp if options.shares is None else None) == right
        assert filled.threads == 8 // max(counts)
        assert filled_in(replace(options, threads=3), hosts_of(*counts)).threads == 3

    def test_a_plan_file_decides(self) -> None:
        options = Options(plan=Path("plan.toml"))
        assert filled_in(options, hosts_of(2, 2)) == options

    def test_what_is_said(self) -> None:
        assert chosen_words(filled_in(Options(), hosts_of(2, 2)), hosts_of(2, 2)) == (
            "2 hosts of 2 ranks: --pp 2 --tp 2, 4 threads each"
        )
        assert chosen_words(filled_in(Options(), hosts_of(1, 2)), hosts_of(1, 2)) == (
            "2 hosts: --pp 3 --tp 1, 4 threads each"
        )

    def test_placed(self) -> None:
        plan = hosts_of(2, 2).placed(split(2, 4, tp=2))
        assert [stage.host for stage in plan.layout.stages] == ["host 0", "host 1"]
        assert plan.layout.link_capacity == CAPACITY
        assert hosts_of(2, 2).free_bytes(plan.layout) == {"host 0": GIB, "host 1": GIB}
        over = hosts_of(2, 2).placed(split(6, tp=4))
        assert hosts_of(2, 2).free_bytes(over.layout) == {"host 0": 2 * GIB}

    def test_another_number_of_ranks(self) -> None:
        with pytest.raises(PlanError) as error:
            hosts_of(2, 2).placed(split(2, 2, 2, tp=2))
        assert str(error.value) == (
            "the plan has 6 ranks (pp = 3 \N{MULTIPLICATION SIGN} tp = 2), but 4 were started: give --pp and --tp "
            "whose product is 4, or a plan of as many, or start 6 with --nproc-per-node 3 on each of the 2 hosts"
        )
        with pytest.raises(PlanError) as error:
            hosts_of(2, 2).placed(split(6))
        assert str(error.value) == (
            "the plan has 1 rank (pp = 1), but 4 were started: give --pp and --tp whose product is 4, "
            "or a plan of as many"
        )

    def test_a_group_that_crosses_hosts_is_warned_of(self) -> None:
        assert crossing_words(split(2, 4, tp=2).layout, hosts_of(2, 2)) is None
        assert crossing_words(split(6, tp=4).layout, hosts_of(2, 2)) == (
            "warning: the tensor group of stage 0 crosses hosts: its ranks exchange twice a layer, for every token, "
            "over the link between the hosts, which is far slower than memory. Faster: tensor groups inside hosts, "
            "--pp 2 --tp 2"
        )


class TestCosts:
    def test_links_within_and_between(self) -> None:
        inside, between = LinkCost(1e-6, 1e9), LinkCost(1e-3, 1e8, buffered=True)
        costs = HostsCosts(FixedCosts(any_link=inside, cores=2), hosts_of(4, 2), lambda one, other: between)
        layout = split(2, 2, 2, tp=2).layout
        assert costs.link(layout, 0, 1) == inside
        assert costs.link(layout, 1, 2) == LinkCost(1e-3, 5e7, buffered=True)
        assert costs.link(layout, 2, 0) == LinkCost(1e-3, 5e7, buffered=True)

    def test_only_stages_of_one_host_share_its_cores(self) -> None:
        costs = HostsCosts(FixedCosts(cores=2), hosts_of(4, 2), lambda one, other: LinkCost(1, 1))
        layout = split(2, 2, 2, tp=2).layout
        running = [Running(2, 1), Running(0, 1), Running(1, 1)]
        assert costs.speeds(layout, running) == (1.0, 0.5, 0.5)
        assert FixedCosts(cores=2).speeds(layout, running) == (1 / 3, 1 / 3, 1 / 3)

    def test_this_hosts_part_is_calibrated_and_one_of_each_other_kind(self) -> None:
        layout = split(2, 2, 2, dtypes=("float32", "float32", "bfloat16"), tp=2).layout
        here = on_this_host(layout, hosts_of(2, 4))
        assert [(stage.dtype, stage.ranks, stage.host) for stage in here.stages] == [
            ("float32", (0, 1), "localhost"),
            ("bfloat16", (2, 3), "localhost"),
        ]
        assert here.ranks == 4


# --- processes --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 4 layers that has a tokenizer: a word for each number to 199."""
    directory = save_llama(
        tmp_path_factory.mktemp("spoken"),
        3,
        vocab_size=200,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(200)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Launched:
    """`plait generate` under torchrun: an agent for each node, all on loopback."""

    def __init__(self, home: Path, nodes: int, per_node: int, *arguments: object) -> None:
        port = str(free_port())
        agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--nproc-per-node"]
        agent += [str(per_node), "--master-addr", "127.0.0.1", "--master-port", port]
        # without the dashes torchrun takes our --run for one of its own options
        command = ["-m", "--", "plait", "generate", *map(str, arguments)]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_STATE_HOME": str(home / "state"),
            "NO_COLOR": "1",
        }
        self.agents = [
            subprocess.Popen(
                [*agent, "--node-rank", str(node), *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for node in range(nodes)
        ]

    def ranks(self) -> dict[int, psutil.Process]:
        """The ranks' processes that have begun."""
        found = {}
        for agent in self.agents:
            for child in psutil.Process(agent.pid).children():
                environment = child.environ()
                if "RANK" in environment:
                    found[int(environment["RANK"])] = child
        return found

    def ended(self, timeout_s: float = 240) -> list[tuple[int, str, str]]:
        """Of each agent: exit status, what was written to stdout, and to stderr but for torchrun's own words."""
        results = []
        for agent in self.agents:
            out, words = agent.communicate(timeout=timeout_s)
            results.append((agent.returncode, out, words))
        return results


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def json_of(launched: Launched) -> dict[str, Any]:
    """What rank 0 wrote, where all ended well and no other rank wrote anything."""
    ended = launched.ended()
    assert [one[0] for one in ended] == [0] * len(ended), ended
    assert [one[1] for one in ended[1:]] == [""] * (len(ended) - 1)
    return dict(json.loads(ended[0][1]))


@pytest.mark.parametrize("flag", [pytest.param("--pp", marks=pytest.mark.soak), "--tp"])
def test_two_processes(spoken: Path, home: Path, tmp_path: Path, flag: str) -> None:
    """The tokens of one process, with the bytes that were predicted; the run's record is where it should be."""
    words = " ".join(map(str, range(3, 80)))
    launched = Launched(
        home, 1, 2, words, "--model", spoken, flag, 2, "--max-tokens", 8, "--json", "--run", tmp_path / "run"
    )
    result = json_of(launched)
    wanted = tokens_of(split(4, context=128), open_index(spoken), [Request(tuple(range(3, 80)), 8)])
    assert [one["tokens"] for one in result["requests"]] == wanted
    assert result["measured"]["comm_bytes"] == result["predicted"]["comm_bytes"] > 0
    assert (len(result["plan"]["stages"]), result["plan"]["tp"]) == ((2, 1) if flag == "--pp" else (1, 2))
    assert (tmp_path / "run" / "run.json").exists()


def test_a_wrong_number_of_ranks_ends_all_in_words(spoken: Path, home: Path) -> None:
    ((status, out, words),) = Launched(home, 1, 2, "1 2", "--model", spoken, "--max-tokens", 8, "--pp", 3).ended()
    assert status != 0
    assert out == ""
    (error,) = [line for line in words.splitlines() if line.startswith("error: ")]
    assert error == (
        "error: the plan has 3 ranks (pp = 3), but 2 were started: give --pp and --tp whose product is 2, "
        "or a plan of as many, or start 3 with --nproc-per-node 3"
    )


@pytest.mark.soak
@pytest.mark.parametrize(
    ("prompt", "right"), [("What is the capital of France?", FRANCE), ("What is gravity?", GRAVITY)]
)
def test_two_hosts_of_two_ranks_answer_as_the_reference(home: Path, prompt: str, right: list[int]) -> None:
    launched = Launched(home, 2, 2, prompt, "--max-tokens", 14, "--json", "--verify")
    result = json_of(launched)
    assert [one["tokens"] for one in result["requests"]] == [right]
    assert (len(result["plan"]["stages"]), result["plan"]["tp"]) == (2, 2)
    assert result["measured"]["comm_bytes"] == result["predicted"]["comm_bytes"]


@pytest.mark.soak
@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_a_killed_rank_is_named_and_all_end(home: Path, victim: int) -> None:
    launched = Launched(home, 2, 2, "Tell a long story.", "--max-tokens", 2000, "--pp", 2, "--tp", 2)
    out = launched.agents[0].stdout
    assert out is not None
    assert out.read(1)  # it answers
    ranks = launched.ranks()
    assert set(ranks) == {0, 1, 2, 3}
    ranks[victim].send_signal(signal.SIGKILL)
    start_s = time.monotonic()
    psutil.wait_procs(list(ranks.values()), timeout=30)
    took_s = time.monotonic() - start_s
    ended = launched.ended()
    assert took_s < 10
    assert all(status != 0 for status, _, _ in ended)
    errors = [line for line in ended[0][2].splitlines() if line.startswith("error: ")]
    if victim != 0:
        stage = victim // 2
        place = f"rank {victim} (host {stage}, stage {stage}, layers "
        assert len(errors) == 1
        assert errors[0].startswith(f"error: {place}")
        assert f", tensor rank {victim % 2} of 2) was lost: " in errors[0]
    else:
        assert any("rank 0 is lost" in line for line in errors)


def test_sigterm_is_answered_after_words() -> None:
    """A rank that is told to end has time to say why; then it ends."""
    code = (
        "import time\n"
        "from plait.ranks.grace import grace\n"
        "with grace(lambda: print('heard', flush=True), 0.3):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        out, words = process.communicate(timeout=30)
    assert (out, words, process.returncode) == ("heard\n", "error: stopped by SIGTERM\n", 143)


def test_a_rank_that_says_something_else(tiny_directory: Path) -> None:
    others = Others((1, 1), tiny_directory)
    others.mesh.post(1, Ping())
    with pytest.raises(RunError) as error:
        others.mesh._answer(1, Greeting)
    assert str(error.value) == "rank 1 answered with Pong, not Greeting"
    others.mesh.leave(failed=True)
    others.join()
