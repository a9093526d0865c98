"""What breaks a run, and what the person is told: every message whole."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from plait.errors import ParityError, PeerLost, RequestError, RunError, WeightsError
from plait.generation import rank as rank_module
from plait.generation.answer import Request, answer
from plait.generation.launch import ProcessRanks, ThreadRanks
from plait.generation.protocol import Token
from plait.generation.verify import verify
from plait.generation.watch import Unwatched
from plait.plans.plan import Plan
from plait.weights.index import WeightsIndex, open_index
from tests.generation.splits import split


class Kill(Unwatched):
    """Kills one rank's process after so many tokens."""

    def __init__(self, rank: int, after: int) -> None:
        self.rank, self.after = rank, after
        self.ranks: ProcessRanks | None = None
        self.killed_at = 0.0

    def launch(self, plan: Plan, index: WeightsIndex) -> ProcessRanks:
        self.ranks = ProcessRanks(plan, index)
        return self.ranks

    def token(self, token: Token) -> None:
        self.after -= 1
        if self.after == 0:
            assert self.ranks is not None
            self.killed_at = time.monotonic()
            os.kill(self.ranks.process_ids[self.rank], signal.SIGKILL)


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (0, "rank 0 (stage 0, layers 0 to 1) was killed by signal 9 (SIGKILL)"),
        (1, "rank 1 (stage 1, layers 2 to 3) was killed by signal 9 (SIGKILL)"),
        (2, "rank 2 (stage 2, layers 4 to 5) was killed by signal 9 (SIGKILL)"),
    ],
)
@pytest.mark.parametrize("schedule", ["layerwise", "pipelined"])
def test_a_stage_killed_in_the_middle(tiny: WeightsIndex, rank: int, message: str, schedule: str) -> None:
    kill = Kill(rank, after=9)
    plan = split(2, 2, 2, schedule=schedule, micro_batches=2 if schedule == "pipelined" else 1)
    requests = [Request((1, 2, 3), 400), Request((4, 5, 6), 400)]
    with pytest.raises(PeerLost) as error:
        answer(plan, tiny, requests, kill.launch, kill)
    assert str(error.value) == message
    assert error.value.rank == rank
    assert time.monotonic() - kill.killed_at < 5 + 5  # told within 5 s; the others are waited for as long at most
    assert kill.ranks is not None
    for process in kill.ranks.process_ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


class StopAndKill(Kill):
    """Lets the others run into a collective that the rank never comes to; then kills it there."""

    def token(self, token: Token) -> None:
        self.after -= 1
        if self.after == 0:
            assert self.ranks is not None
            process = self.ranks.process_ids[self.rank]
            os.kill(process, signal.SIGSTOP)
            time.sleep(0.3)
            self.killed_at = time.monotonic()
            os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(
    ("plan", "rank", "message"),
    [
        (
            split(6, tp=2),
            1,
            "rank 1 (stage 0, layers 0 to 5, tensor rank 1 of 2) was killed by signal 9 (SIGKILL)",
        ),
        (
            split(6, tp=2, sequence=True),
            0,
            "rank 0 (stage 0, layers 0 to 5, tensor rank 0 of 2) was killed by signal 9 (SIGKILL)",
        ),
        (
            split(3, 3, tp=2, micro_batches=2),
            2,
            "rank 2 (stage 1, layers 3 to 5, tensor rank 0 of 2) was killed by signal 9 (SIGKILL)",
        ),
    ],
    ids=["one group", "rank 0", "two groups"],
)
def test_a_rank_killed_while_its_group_waits_in_a_collective(
    tiny: WeightsIndex, plan: Plan, rank: int, message: str
) -> None:
    """The others end by themselves, and leave neither processes nor open files nor shared memory."""
    kill = StopAndKill(rank, after=9)
    before = os.listdir("/dev/shm"), len(os.listdir("/proc/self/fd"))
    with pytest.raises(PeerLost) as error:
        answer(plan, tiny, [Request((1, 2, 3), 400), Request((4, 5, 6), 400)], kill.launch, kill)
    assert str(error.value) == message
    assert error.value.rank == rank
    assert time.monotonic() - kill.killed_at < 5
    assert kill.ranks is not None
    statuses = [process.returncode for process in kill.ranks.processes]
    assert statuses == [-signal.SIGKILL if number == rank else 1 for number in range(plan.layout.ranks)]
    assert (os.listdir("/dev/shm"), len(os.listdir("/proc/self/fd"))) == before


def test_an_error_inside_a_tensor_group_is_told_not_what_the_others_noticed(
    tiny: WeightsIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rank_module.StageWorker.forward

    def broken(self, one, micro_batch, message):  # type: ignore[no-untyped-def]
        if one.number == 3 and self._part.shard.index == 1:
            raise ZeroDivisionError("seeded")
        return original(self, one, micro_batch, message)

    monkeypatch.setattr(rank_module.StageWorker, "forward", broken)
    with pytest.raises(RunError) as error:
        answer(split(6, tp=3), tiny, [Request((1, 2), 9)], ThreadRanks)
    begin = "rank 1 (stage 0, layers 0 to 5, tensor rank 1 of 3): Traceback (most recent call last):"
    assert str(error.value).startswith(begin)
    assert str(error.value).endswith("ZeroDivisionError: seeded\n")


def test_a_request_that_does_not_fit_is_refused_before_anything_starts(tiny: WeightsIndex) -> None:
    def never(plan: Plan, index: WeightsIndex) -> ProcessRanks:
        raise AssertionError("ranks were started")

    with pytest.raises(RequestError) as error:
        answer(split(6, context=128), tiny, [Request((1,) * 100, 64)], never)
    assert str(error.value) == (
        "request 0 has a prompt of 100 tokens and asks for 64 more, 164 in all, but the context holds 128: "
        "36 too many (--context 164 would hold it)"
    )


@pytest.mark.parametrize("launch", [ThreadRanks, ProcessRanks])
def test_weights_that_change_after_they_were_indexed(
    tiny_directory: Path, tmp_path: Path, launch: Callable[[Plan, WeightsIndex], ThreadRanks | ProcessRanks]
) -> None:
    for file in tiny_directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    index = open_index(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(WeightsError) as error:
        answer(split(3, 3), index, [Request((1, 2), 4)], launch)
    assert str(error.value).startswith("rank ")
    assert str(path) in str(error.value)


def test_an_error_in_a_rank_names_it_and_keeps_its_trace(tiny: WeightsIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("seeded")

    monkeypatch.setattr(rank_module, "KVCache", broken)
    with pytest.raises(RunError) as error:
        answer(split(6), tiny, [Request((1, 2), 4)], ThreadRanks)
    assert str(error.value).startswith("rank 0 (stage 0, layers 0 to 5): Traceback (most recent call last):")
    assert str(error.value).endswith("ZeroDivisionError: seeded\n")


class TestMixedStages:
    """Public case S11: wrong text from mixed devices, without an error."""

    prompt = tuple(range(1, 90))

    @pytest.mark.parametrize(
        ("dtypes", "most"),
        [(("float32", "float32"), 1e-5), (("float32", "bfloat16"), 0.3), (("bfloat16", "float32"), 0.3)],
    )
    def test_stages_of_different_precision_within_the_bound(
        self, tiny: WeightsIndex, dtypes: tuple[str, str], most: float
    ) -> None:
        verdict = verify(split(3, 3, dtypes=dtypes), tiny, self.prompt, 6, ThreadRanks, ThreadRanks)
        assert verdict.bound <= most  # bfloat16: twice its own rounding, wide on a random model
        assert verdict.compared >= 1
        assert (verdict.error > 1e-5) == ("bfloat16" in dtypes)

    @pytest.mark.parametrize(
        "fault",
        [
            lambda tensors: tensors["layers.4.o.weight"].mul_(1.05),
            lambda tensors: tensors["layers.3.k.weight"].copy_(tensors["layers.3.k.weight"].flip(0)),
            lambda tensors: tensors["norm.weight"].fill_(float("nan")),
        ],
        ids=["scaled", "another order of rows", "not a number"],
    )
    def test_a_stage_that_computes_something_else(
        self, tiny: WeightsIndex, monkeypatch: pytest.MonkeyPatch, fault: Callable[[dict[str, object]], object]
    ) -> None:
        original = rank_module.load_stage

        def faulty(index, first, end, dtype, progress=None, shard=None):  # type: ignore[no-untyped-def]
            tensors = original(index, first, end, dtype, progress, shard)
            if (first, end) == (3, 6):
                fault(tensors)
            return tensors

        monkeypatch.setattr(rank_module, "load_stage", faulty)
        with pytest.raises(ParityError) as error:
            verify(split(3, 3), tiny, self.prompt, 2, ThreadRanks, ThreadRanks)
        assert str(error.value).endswith("of the largest, and 1e-05 is the bound: its text cannot be trusted")


def test_slots_are_never_more_than_the_plan_says(tiny: WeightsIndex) -> None:
    """Ten requests over two slots: each waits its turn, none is lost."""
    plan = replace(split(3, 3, micro_batches=2), slots=2)
    outcome = answer(plan, tiny, [Request((number + 1, 2, 3), 3) for number in range(10)], ThreadRanks)
    assert [len(one.tokens) for one in outcome.answers] == [3] * 10
    assert {row.slot for one in outcome.rounds for work in one.work for row in work.rows} == {0, 1}
