"""Long runs, in `make soak`: kills at any moment, and a grid of splits of the demo model over processes."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from plait.errors import PeerLost
from plait.generation.answer import Request, answer
from plait.generation.launch import ProcessRanks
from plait.generation.opened import Opened
from plait.plans.plan import Plan
from plait.plans.sampling import SamplingParams
from plait.weights.index import WeightsIndex
from tests.generation.splits import split
from tests.generation.test_tokens import FRANCE, GRAVITY

pytestmark = pytest.mark.soak


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("seed", range(24))
def test_killed_at_any_moment(tiny: WeightsIndex, seed: int) -> None:
    """While it starts, loads, computes or waits: a named error soon; no process, descriptor or memory is left."""
    chance = random.Random(seed)
    stages = chance.choice(((6,), (3, 3), (2, 2, 2), (1, 2, 2, 1)))
    victim = chance.randrange(len(stages))
    plan = split(*stages, schedule=chance.choice(("layerwise", "pipelined")), slots=3)
    before = descriptors(), set(os.listdir("/dev/shm")), {child.pid for child in psutil.Process().children()}
    killed: list[float] = []

    def launch(plan: Plan, index: WeightsIndex) -> ProcessRanks:
        ranks = ProcessRanks(plan, index)

        def kill() -> None:
            killed.append(time.monotonic())
            os.kill(ranks.process_ids[victim], signal.SIGKILL)

        threading.Timer(chance.uniform(0, 4), kill).start()
        return ranks

    requests = [Request((1, 2, request), 500, sampling=SamplingParams(0.8, seed=seed)) for request in range(60)]
    with pytest.raises(PeerLost) as error:
        answer(plan, tiny, requests, launch)
    assert error.value.rank == victim
    assert str(error.value).endswith("was killed by signal 9 (SIGKILL)")
    assert time.monotonic() - killed[0] < 10
    after = descriptors(), set(os.listdir("/dev/shm")), {child.pid for child in psutil.Process().children()}
    assert after == before


@pytest.mark.parametrize(
    ("counts", "schedule", "users"),
    list(itertools.product([(30,), (19, 11), (10, 12, 8), (6,) * 5], ["layerwise", "pipelined"], [1, 6])),
)
def test_the_demo_over_processes(demo: Opened, counts: tuple[int, ...], schedule: str, users: int) -> None:
    micro_batches = min(len(counts), users) if schedule == "pipelined" else 1
    plan = split(*counts, schedule=schedule, micro_batches=micro_batches, slots=users, context=128)
    texts = ["What is the capital of France?", "What is gravity?"] * 3
    requests = [Request(demo.encode(text), 14, demo.stop) for text in texts[:users]]
    outcome = answer(plan, demo.index, requests, ProcessRanks)
    assert [one.tokens for one in outcome.answers] == ([FRANCE, GRAVITY] * 3)[:users]
    assert sum(one.sent_bytes[to] for one in outcome.ranks for to in range(len(counts))) == sum(
        span.payload_bytes for span in outcome.measured.spans
    )


def test_a_long_answer_over_three_processes(tiny: WeightsIndex, tmp_path: Path) -> None:
    """Thousands of rounds: what is remembered of ended requests does not grow, tokens stay those of one process."""
    requests = [Request((5, request % 300, 7), 20 + request % 50) for request in range(200)]
    wanted = answer(split(6, slots=8), tiny, requests, ProcessRanks)
    got = answer(split(2, 3, 1, micro_batches=3, slots=8), tiny, requests, ProcessRanks)
    assert [one.tokens for one in got.answers] == [one.tokens for one in wanted.answers]
