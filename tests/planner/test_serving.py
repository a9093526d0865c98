"""The planner for generation against the public cases P1, P2, P4, P5, P7 and P8, and what must hold of any cluster."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.serving import ServingModel
from plait.errors import CapacityError
from plait.planner.result import Candidate, Choice, Objective, choice_json
from plait.planner.serving import BEAM, ServingLimits, plan_serving
from plait.planner.serving_figures import Way, figures, fits, simulated
from plait.planner.serving_search import Search, value
from plait.planner.serving_units import Unit, World
from plait.planner.serving_words import format_bits
from plait.plans.file import dump_plan, plan_from_text
from plait.plans.plan import Plan
from plait.schedules.generation import LAYERWISE, PIPELINED
from plait.spec.cluster import Cluster, Device, Host, Link, Wire
from plait.spec.job import Job
from tests.planner.machines import LLAMA_70B, SMOL, hosts, plain, single

GBIT = 1e9 / 8
NVLINK, INFINIBAND = Wire(3e-6, 450e9), Wire(5e-6, 50e9)
PIPELINES = ServingLimits(tp=1)


def of_kind(choice: Choice, kind: str) -> Candidate:
    return next(one for one in choice.candidates if one.kind == kind)


def counts(candidate: Candidate) -> list[int]:
    return [end - first for first, end in candidate.cut]


class TestP1:
    """exo #957: layers given out by memory alone. Five machines, 40 layers of 1 GB, bound by memory bandwidth."""

    MODEL = plain(40, 1e9)

    @staticmethod
    def five(latency_s: float = 0.0, bandwidth: float = 1e15) -> Cluster:
        figures_of = {"a": (264.4, 36), "b": (344.0, 96), "c": (308.7, 64), "d": (351.2, 96), "e": (177.6, 36)}
        return single(figures_of, latency_s, bandwidth)

    def test_many_users(self) -> None:
        choice = plan_serving(self.MODEL, self.five(), Job(1, 2, 1), "throughput", limits=PIPELINES)
        chosen = choice.chosen
        assert chosen.kind == "pipeline"
        assert chosen.devices == (("a",), ("b",), ("c",), ("d",), ("e",))
        assert counts(chosen) == [7, 10, 8, 10, 5]
        assert 1 / chosen.predicted["decode_tokens_per_s"] == pytest.approx(0.02907, rel=1e-3)

    def test_one_user(self) -> None:
        choice = plan_serving(self.MODEL, self.five(), Job(1, 2, 1), "latency", limits=PIPELINES)
        assert choice.chosen.devices == (("d",),)
        assert choice.chosen.predicted["time_per_token_s"] == pytest.approx(0.1139, rel=1e-3)
        assert choice.reason.startswith("use d alone: predicted 114 ms a token; pipeline of 2 over ")

    def test_one_user_over_wifi_does_not_split_tensors_either(self) -> None:
        """80 all-reduces of 2 ms are more than the machines save together."""
        choice = plan_serving(self.MODEL, self.five(2e-3, GBIT), Job(1, 2, 1), "latency")
        assert choice.chosen.devices == (("d",),)
        assert of_kind(choice, "tensor").predicted["time_per_token_s"] > 0.160

    def test_other_cuts_take_what_the_case_says(self) -> None:
        world = World(self.MODEL, self.five(), Job(1, 2, 1), ServingModel(self.MODEL, self.five()))
        units = tuple(Unit((name,)) for name in "abcde")
        for layers, seconds in (((7, 10, 8, 10, 5), 0.1381), ((4, 12, 8, 12, 4), 0.1326)):
            ends = [sum(layers[: at + 1]) for at in range(5)]
            way = Way((units,), tuple(zip([0, *ends[:-1]], ends, strict=True)), LAYERWISE, 1, 1, 64)
            assert figures(world, way)["time_per_token_s"] == pytest.approx(seconds, rel=1e-3)


def test_p2_the_fast_machine_alone_though_the_slow_one_has_more_memory() -> None:
    """exo #2180. 20 GB fit both; the fast one reads them in 20 ms, the slow one in 100 ms."""
    cluster = single({"fast": (1000, 32), "slow": (200, 128)}, 1e-3, GBIT)
    choice = plan_serving(plain(20, 1e9), cluster, Job(64, 64, 1), "latency")
    assert choice.chosen.kind == "one device"
    assert choice.chosen.devices == (("fast",),)
    assert choice.chosen.predicted["time_per_token_s"] == pytest.approx(0.020, rel=0.01)


class TestP4:
    """exo #803, distributed-llama #262: two machines slower than one; B is 4 times slower."""

    CLUSTER = single({"A": (400, 32), "B": (100, 32)}, 2e-3, GBIT)

    def test_a_alone_with_both_times(self) -> None:
        """10 GB at 400 GB/s are 25 ms; one layer of ten on B is 22.5 + 10 ms and two messages."""
        choice = plan_serving(plain(10, 1e9), self.CLUSTER, Job(64, 64, 1), "latency")
        assert choice.reason.startswith(
            "use A alone: predicted 25.1 ms a token; pipeline of 2 over B + A, layers 1/9, "
        )
        assert "36.6 ms a token" in choice.reason
        pipeline = of_kind(choice, "pipeline")
        assert pipeline.predicted["time_per_token_s"] == pytest.approx(0.025 * 0.9 + 0.010 + 2 * 2e-3, rel=0.01)
        assert pipeline.loses.startswith("36.6 ms a token, 11.6 ms more; one stage computes while the others wait, 56%")

    def test_every_other_kind_says_why_it_loses(self) -> None:
        choice = plan_serving(plain(10, 1e9), self.CLUSTER, Job(64, 64, 1), "latency")
        assert {one.kind for one in choice.candidates} == {"one device", "pipeline", "tensor"}
        for one in choice.candidates[1:]:
            assert " more" in one.loses
            assert "compute" in one.loses
            assert "transfer" in one.loses
            assert "wait" in one.loses


class TestP5:
    """distributed-llama #157: only one machine's memory considered; the cache at the model's full context."""

    CLUSTER = single({"a": (100, 9), "b": (100, 9)}, 1e-4, GBIT)
    MODEL = plain(12, 1e9)
    CACHE = 2 * 4096 * 2
    """Bytes of a position in one layer: keys and values of 32 heads of 128 in two bytes."""

    def test_the_asked_context_counts_on_every_stage(self) -> None:
        choice = plan_serving(self.MODEL, self.CLUSTER, Job(512, 512, 1, 4096), "latency", limits=PIPELINES)
        assert counts(choice.chosen) == [6, 6]
        for one in choice.chosen.memory:
            held = 6e9 + 6 * 4096 * self.CACHE
            assert held < one.need_bytes < held + 0.6e9
            assert one.free_bytes == 9 * 10**9

    def test_users_each_have_a_cache(self) -> None:
        one, four = (
            plan_serving(self.MODEL, self.CLUSTER, Job(512, 512, users, 4096), "latency", limits=PIPELINES)
            for users in (1, 4)
        )
        more = four.chosen.memory[0].need_bytes - one.chosen.memory[0].need_bytes
        assert more >= 3 * 6 * 4096 * self.CACHE

    def test_the_cache_can_move_the_cut(self) -> None:
        """Where the first machine has no memory left, the second one takes its layers with their cache."""
        cluster = single({"a": (200, 6), "b": (100, 14)}, 1e-4, GBIT)
        short, long = (
            plan_serving(self.MODEL, cluster, Job(512, 512, 1, context), "latency", limits=PIPELINES).chosen
            for context in (1024, 16384)
        )
        first = [dict(zip(one.devices, counts(one), strict=True))[("a",)] for one in (short, long)]
        assert first[0] > first[1]


class TestP7:
    """vLLM #5003, distributed-llama #139: heads or machines do not divide. 9 heads, 3 KV heads."""

    @pytest.mark.parametrize("devices", [2, 3])
    def test_any_number_of_devices(self, devices: int) -> None:
        cluster = single(dict.fromkeys("abc"[:devices], (50, 16)), 1e-6, 1e11)
        choice = plan_serving(SMOL, cluster, Job(64, 64, 1), "latency", limits=ServingLimits(tp=devices))
        assert choice.chosen.split.tp == devices
        assert choice.chosen.plan.layout.axes["tp"] == devices

    def test_unequal_devices_hold_unequal_heads(self) -> None:
        """The faster one holds more of the 9 heads, as many as make both end together."""
        cluster = single({"fast": (100, 16), "slow": (50, 16)}, 1e-6, 1e11)
        choice = plan_serving(SMOL, cluster, Job(64, 64, 1), "latency", limits=ServingLimits(tp=2))
        assert choice.chosen.devices == (("fast", "slow"),)
        assert choice.chosen.plan.layout.stages[0].shares == (6, 3)

    def test_a_device_without_memory_for_its_share_gets_fewer_heads(self) -> None:
        cluster = single({"fast": (100, 4.5), "slow": (50, 16)}, 1e-6, 1e12)
        choice = plan_serving(plain(10, 1e9), cluster, Job(64, 64, 1), "latency", limits=ServingLimits(tp=2))
        shares = choice.chosen.plan.layout.stages[0].shares
        assert shares[0] < 32 * 2 / 3 - 2
        assert all(one.need_bytes <= one.free_bytes for one in choice.chosen.memory)

    def test_three_stages_for_thirty_layers_and_a_head(self) -> None:
        cluster = single(dict.fromkeys("abc", (50, 16)), 1e-6, 1e11)
        limits = ServingLimits(pp=3, tp=1)
        choice = plan_serving(SMOL, cluster, Job(64, 64, 4), "throughput", limits=limits)
        assert sum(counts(choice.chosen)) == 30


class TestP8:
    """Two machines of one 24 GB device with 1 TB/s each, a 70B model at 4.5 bits a weight, one user."""

    JOB = Job(2048, 128, 1)

    def plan(self, latency_s: float, bandwidth: float, objective: Objective = "latency") -> Choice:
        cluster = single({"a": (1000, 24), "b": (1000, 24)}, latency_s, bandwidth, flops=1e14)
        return plan_serving(LLAMA_70B, cluster, self.JOB, objective, weights="q4_0")

    def test_gigabit_ethernet(self) -> None:
        """Layer-wise about 40 ms; tensor: half of the reading, and 160 all-reduces of 100 µs + 16 KB ÷ 125 MB/s."""
        choice = self.plan(100e-6, GBIT)
        assert choice.chosen.kind == "pipeline"
        assert choice.chosen.schedule == "layerwise"
        assert choice.chosen.predicted["time_per_token_s"] == pytest.approx(0.040, rel=0.02)
        tensor = of_kind(choice, "tensor")
        assert tensor.predicted["time_per_token_s"] == pytest.approx(0.0199 + 160 * (100e-6 + 16384 / 125e6), rel=0.01)
        assert "its 160 all-reduces of 16.0 KiB cross links of 125 MB/s and 100 µs" in tensor.loses

    def test_the_break_even_link(self) -> None:
        """By hand: both equal where what tensor sends more takes as long as pipeline − half − latencies leaves.

        It sends 160 sums of 16,384 bytes for the layers, one for the embedding, and 16 bytes of candidates, each after
        a latency; the pipeline 16,384 bytes and a token of 8.
        """
        choice = self.plan(100e-6, GBIT)
        pipeline = choice.chosen.predicted["time_per_token_s"]
        tensor = of_kind(choice, "tensor").predicted["time_per_token_s"]
        half = tensor - 162 * 100e-6 - (161 * 16384 + 16) / 125e6
        left = pipeline - (16384 + 8) / 125e6 - half - 162 * 100e-6
        (one,) = choice.break_even
        assert (one.kind, one.quantity) == ("tensor", "bandwidth")
        assert one.value == pytest.approx((160 * 16384 + 8) / left, rel=0.001)
        assert one.text == "tensor wins over pipeline from 5.36 Gb/s on (between hosts, at a latency of 100 µs)"

    @pytest.mark.parametrize(("factor", "kind"), [(0.98, "pipeline"), (1.02, "tensor")])
    def test_the_answer_changes_there(self, factor: float, kind: str) -> None:
        (one,) = self.plan(100e-6, GBIT).break_even
        assert self.plan(100e-6, one.value * factor).chosen.kind == kind

    def test_ten_gigabit_and_a_third_of_the_latency(self) -> None:
        choice = self.plan(30e-6, 10 * GBIT)
        assert choice.chosen.kind == "tensor"
        assert choice.chosen.predicted["time_per_token_s"] == pytest.approx(
            0.0199 + 160 * (30e-6 + 16384 / 1.25e9), rel=0.01
        )
        assert [one.text for one in choice.break_even] == [
            "tensor wins over pipeline from 1.39 Gb/s on (between hosts, at a latency of 30 µs)",
            "tensor wins over pipeline up to a latency of 111 µs (between hosts, at 10 Gb/s)",
        ]

    def test_a_prompt_loses_by_what_it_moves(self) -> None:
        """160 × 33.5 MB over 1 Gb/s are 43 s."""
        choice = self.plan(100e-6, GBIT, "ttft")
        assert choice.chosen.kind == "pipeline"
        assert of_kind(choice, "tensor").predicted["ttft_s"] == pytest.approx(160 * 33.55e6 / GBIT + 1.5, rel=0.02)
        assert "its 160 all-reduces of 32.0 MiB cross links" in of_kind(choice, "tensor").loses


def test_a_slow_machine_is_left_out_of_a_pipeline() -> None:
    cluster = single({"a": (100, 8), "b": (100, 8), "slow": (1, 8)}, 1e-5, 1e11)
    choice = plan_serving(plain(10, 1e9), cluster, Job(16, 16, 1), "throughput", limits=PIPELINES)
    assert {name for names in choice.chosen.devices for name in names} == {"a", "b"}
    assert "1 of 3 devices stay out" in choice.reason


def test_a_choice_within_what_figures_vary_by_is_said_to_be_open() -> None:
    """Two machines of which one is 5 % faster: certain, unless either was measured to no better than that."""
    cluster = single({"a": (100, 80), "b": (95, 80)}, 1e-3, 1e9)
    limits = ServingLimits(pp=1, tp=1)
    known = plan_serving(plain(10, 1e9), cluster, Job(16, 16, 1), "latency", limits=limits)
    assert "certain" not in known.reason
    for part, words in (
        (0.04, None),
        (0.06, "b alone lies 5.3% behind, and the devices' figures were measured to ± 6%"),
    ):
        first, second = cluster.devices
        measured = replace(cluster, devices=(first, replace(second, spread={"memory_bandwidth": part})))
        choice = plan_serving(plain(10, 1e9), measured, Job(16, 16, 1), "latency", limits=limits)
        assert choice.chosen.devices == (("a",),)
        assert ("certain" in choice.reason) == (words is not None)
        assert words is None or choice.reason.endswith(f"; that is not certain: {words}")


def test_micro_batches_are_not_more_where_they_read_the_weights_again() -> None:
    """8 users that are divided: both stages are busy with two micro-batches, but each reads its weights twice."""
    cluster = single({"a": (100, 8), "b": (100, 8)}, 1e-5, 1e11)
    limits = ServingLimits(tp=1, full=False)
    choice = plan_serving(plain(10, 1e9), cluster, Job(16, 16, 8), "throughput", limits=limits)
    assert choice.chosen.micro_batches == 2  # not faster but for the messages, which it hides
    assert choice.chosen.predicted["decode_tokens_per_s"] == pytest.approx(8 / 0.1, rel=0.02)
    assert "of its schedules: pipelined with 3 micro-batches 53.2 tokens/s" in choice.reason


def test_micro_batches_where_computing_binds() -> None:
    """64 users at 1 TFLOP/s: 5 GFLOP a token and user, far above the reading, and two stages are twice as fast."""
    cluster = single({"a": (100, 8), "b": (100, 8)}, 1e-5, 1e11, flops=1e12)
    limits = ServingLimits(tp=1, full=False)
    choice = plan_serving(plain(10, 1e9), cluster, Job(16, 16, 64), "throughput", limits=limits)
    assert choice.chosen.schedule == PIPELINED
    assert choice.chosen.micro_batches >= 2


def test_full_micro_batches_say_for_how_many_users_they_are() -> None:
    cluster = single({"a": (100, 8), "b": (100, 8)}, 1e-5, 1e11)
    choice = plan_serving(plain(10, 1e9), cluster, Job(16, 16, 4), "throughput", limits=PIPELINES)
    users = 4 * choice.chosen.micro_batches
    assert choice.chosen.micro_batches >= 2
    assert f"this serves {users} users in all, 4 in each micro-batch" in choice.reason
    assert "for no more than 4 users in all the most is 39.9 tokens/s, with pipeline of 2 over a + b" in choice.reason


# what must hold of any cluster


@pytest.mark.parametrize(
    ("cut", "schedule", "micro_batches", "users", "latency_s"),
    [
        (((0, 12),), LAYERWISE, 1, 1, 1e-4),
        (((0, 12),), LAYERWISE, 1, 5, 1e-4),
        (((0, 5), (5, 12)), LAYERWISE, 1, 1, 1e-4),
        (((0, 3), (3, 8), (8, 12)), LAYERWISE, 1, 6, 1e-3),
        (((0, 6), (6, 12)), PIPELINED, 2, 2, 0.0),
        (((0, 4), (4, 8), (8, 12)), PIPELINED, 3, 6, 1e-6),
        (((0, 3), (3, 8), (8, 12)), PIPELINED, 2, 4, 1e-6),
        (((0, 3), (3, 8), (8, 12)), PIPELINED, 5, 5, 1e-6),
        (((0, 3), (3, 8), (8, 12)), PIPELINED, 7, 14, 1e-3),
        (((0, 6), (6, 12)), PIPELINED, 3, 9, 1e-3),
        (((0, 4), (4, 8), (8, 12)), PIPELINED, 1, 1, 1e-3),
    ],
)
@pytest.mark.parametrize("bandwidth", [1e11, 1e6, 2e5, 5e4])
@pytest.mark.parametrize("tp", [1, 2, 3])
def test_closed_forms_are_the_simulators(
    cut: tuple[tuple[int, int], ...],
    schedule: str,
    micro_batches: int,
    users: int,
    latency_s: float,
    bandwidth: float,
    tp: int,
) -> None:
    """Layer-wise, and pipelines whose stages, links or way through all bind: a layer takes 10 ms, a token's link 80."""
    names = [f"d{one}" for one in range(9)]
    cluster = single(dict.fromkeys(names, (100, 24)), latency_s, bandwidth)
    spec = plain(12, 1e9)
    world = World(spec, cluster, Job(128, 64, users), ServingModel(spec, cluster))
    units = tuple(Unit(tuple(names[tp * at : tp * at + tp])) for at in range(len(cut)))
    way = Way((units,), cut, schedule, micro_batches, users, 128)
    closed, replayed = figures(world, way), simulated(world, way)
    for key in ("time_per_token_s", "decode_tokens_per_s", "compute_s", "comm_bytes", "peak_bytes"):
        assert closed[key] == pytest.approx(replayed[key], rel=1e-9), key
    for found in (closed, replayed):
        spent_s = found["compute_s"] + found["transfer_s"] + found["wait_s"]
        assert spent_s == pytest.approx(found["time_per_token_s"], rel=1e-9)
    for size in (128, 64) if users == 1 or schedule == LAYERWISE else ():
        sized = replace(way, chunk=size)
        first_s, again_s = (one(world, sized)["ttft_s"] for one in (figures, simulated))
        assert first_s == pytest.approx(again_s, rel=1e-9)


@pytest.mark.parametrize(("users", "replicas"), [(1, 4), (5, 4), (8, 4), (3, 2)])
def test_replicas_serve_the_users_that_there_are(users: int, replicas: int) -> None:
    """Every token of a round is of a user: so many users ÷ the time of the fullest replica's round."""
    cluster = hosts(4, 1, NVLINK, INFINIBAND)
    limits = ServingLimits(dp=replicas, pp=1, tp=1)
    predicted = plan_serving(plain(8, 1e9), cluster, Job(16, 16, users), "latency", limits=limits).chosen.predicted
    assert predicted["decode_tokens_per_s"] == pytest.approx(users / predicted["time_per_token_s"])
    assert predicted["prefill_tokens_per_s"] <= 16 * users / predicted["ttft_s"]
    assert predicted["comm_bytes"] == 0


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> Cluster:
    """A few unequal devices, some on one host, with links of every sort."""
    count = draw(st.integers(1, most))
    homes = [draw(st.integers(0, at)) for at in range(count)]
    devices = tuple(
        Device(
            f"d{at}",
            f"h{home}",
            draw(st.integers(3, 20)) * 10**9,
            {"bfloat16": draw(st.sampled_from([1e12, 1e14]))},
            draw(st.sampled_from([50e9, 100e9, 400e9])),
        )
        for at, home in enumerate(homes)
    )
    links = tuple(
        Link(one.name, other.name, draw(st.sampled_from([0.0, 1e-5, 1e-3])), draw(st.sampled_from([1e8, 1e9, 1e11])))
        for one in devices
        for other in devices
        if one is not other
    )
    return Cluster(tuple(Host(f"h{home}") for home in range(count)), devices, links)


def best_s(cluster: Cluster, objective: Objective, users: int) -> float:
    spec = plain(8, 1e9)
    job = Job(128, 64, users)
    search = Search(World(spec, cluster, job, ServingModel(spec, cluster)), objective).run()
    return value(objective, search.found[0].figures) if search.found else float("inf")


@settings(max_examples=25, deadline=None)
@given(clusters(3), st.integers(1, 2))
def test_no_pipeline_by_brute_force_is_faster(cluster: Cluster, users: int) -> None:
    """Every order of every subset of the devices, and every cut, by the same closed forms."""
    spec, job = plain(5, 1e9), Job(128, 64, users)
    world = World(spec, cluster, job, ServingModel(spec, cluster))
    search = Search(world, "latency", PIPELINES).run()
    ways = (
        Way((tuple(Unit((name,)) for name in order),), tuple(pairwise((0, *ends, 5))), LAYERWISE, 1, users, 128)
        for count in range(1, len(cluster.devices) + 1)
        for order in permutations(world.devices, count)
        for ends in combinations(range(1, 5), count - 1)
    )
    least = min((figures(world, way)["time_per_token_s"] for way in ways if fits(world, way)), default=None)
    if least is None:
        assert not search.found
    else:
        assert search.found[0].figures["time_per_token_s"] <= least * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    clusters(),
    st.integers(0, 3),
    st.sampled_from(["device", "memory", "bandwidth", "links"]),
    st.sampled_from(["latency", "throughput", "ttft"]),
    st.integers(1, 3),
)
def test_more_never_makes_the_best_worse(cluster: Cluster, which: int, more: str, goal: Objective, users: int) -> None:
    which %= len(cluster.devices)
    one = cluster.devices[which]
    if more == "device":
        poorer = replace(
            cluster,
            devices=tuple(device for device in cluster.devices if device is not one),
            links=tuple(link for link in cluster.links if one.name not in (link.source, link.target)),
        )
        if not poorer.devices:
            return
        richer = cluster
    else:
        poorer = cluster
        memory = one.memory_bytes * (2 if more == "memory" else 1)
        bandwidth = one.memory_bandwidth * (2 if more == "bandwidth" else 1)
        devices = list(cluster.devices)
        devices[which] = replace(one, memory_bytes=memory, memory_bandwidth=bandwidth)
        faster = tuple(replace(link, bandwidth=link.bandwidth * 2) for link in cluster.links)
        richer = replace(cluster, devices=tuple(devices), links=faster if more == "links" else cluster.links)
    assert best_s(richer, goal, users) <= best_s(poorer, goal, users) * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(clusters(), st.sampled_from(["latency", "throughput", "ttft"]), st.integers(1, 3))
def test_nothing_chosen_is_worse_than_the_best_device_alone(cluster: Cluster, goal: Objective, users: int) -> None:
    spec, job = plain(8, 1e9), Job(128, 64, users)
    try:
        choice = plan_serving(spec, cluster, job, goal, top=3)
    except CapacityError:
        return
    alone = [one for one in choice.candidates if one.kind == "one device"]
    best = value(goal, choice.chosen.predicted)
    assert all(best <= value(goal, one.predicted) * (1 + 1e-9) for one in alone)
    assert all(one.need_bytes <= one.free_bytes for candidate in choice.candidates for one in candidate.memory)


def test_more_machines_than_the_exact_search_takes_are_said() -> None:
    """17 devices, each of its own speed."""
    cluster = single({f"d{at}": (100 + at, 3) for at in range(17)}, 1e-4, 1e10)
    choice = plan_serving(plain(20, 1e9), cluster, Job(16, 16, 1), "latency", top=1, limits=PIPELINES)
    assert choice.chosen.note.endswith(BEAM)
    few = plan_serving(plain(20, 1e9), single({"a": (100, 12), "b": (101, 12)}, 1e-4, 1e10), Job(16, 16, 1), "latency")
    assert BEAM not in few.chosen.note


@pytest.mark.parametrize(
    ("bytes_per_s", "words"),
    [(GBIT * 5.19, "5.19 Gb/s"), (GBIT / 1000 * 250, "250 Mb/s"), (1250, "10 kb/s"), (10, "80 b/s")],
)
def test_bandwidth_as_networks_are_sold(bytes_per_s: float, words: str) -> None:
    assert format_bits(bytes_per_s) == words


def test_equal_hosts_keep_tensor_groups_inside() -> None:
    """8 devices a host at 450 GB/s, hosts at 50 GB/s: no tensor group of the best for many users crosses a host."""
    choice = plan_serving(LLAMA_70B, hosts(4, 8, NVLINK, INFINIBAND), Job(512, 128, 16), "throughput")
    assert choice.chosen.split.tp <= 8
    assert choice.chosen.split.ranks == 32
    groups = choice.chosen.devices[0]
    tp = choice.chosen.split.tp
    for at in range(0, len(groups), tp):
        assert len({name.split(".")[0] for name in groups[at : at + tp]}) == 1


def test_more_equal_hosts_serve_more() -> None:
    rates = [
        plan_serving(
            LLAMA_70B, hosts(count, 8, NVLINK, INFINIBAND), Job(512, 128, 16), "throughput", top=3
        ).chosen.predicted["decode_tokens_per_s"]
        for count in (1, 2, 4)
    ]
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.01)
    assert rates[2] == pytest.approx(4 * rates[0], rel=0.01)


def test_the_answer_as_json_and_its_plan_as_a_file() -> None:
    choice = plan_serving(plain(10, 1e9), single({"a": (100, 8), "b": (100, 8)}, 1e-4, GBIT), Job(64, 64, 1), "latency")
    answer = choice_json(choice)
    assert answer["chosen"]["split"] == {"dp": 1, "pp": 1, "tp": 2, "ep": 1} or answer["chosen"]["split"]["pp"] == 2
    assert set(answer["chosen"]["predicted"]) == {
        "ttft_s", "prefill_tokens_per_s", "decode_tokens_per_s", "tokens_per_s", "time_per_token_s", "bubble",
        "comm_bytes", "compute_s", "transfer_s", "wait_s", "peak_bytes",
    }  # fmt: skip
    assert answer["rejected"] == [
        {"split": {"pp": 1, "tp": 1}, "count": 1, "reason": choice.rejected[0].reason,
         "need": choice.rejected[0].need, "have": 8e9}
    ]  # fmt: skip
    plan, cluster = choice.chosen.plan, single({"a": (100, 8), "b": (100, 8)}, 1e-4, GBIT)
    assert isinstance(plan, Plan)
    assert plan_from_text(dump_plan(plan, cluster)) == plan
