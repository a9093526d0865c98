"""Ranks of a training run, each a thread: what they tell the front, and what rank 0 of a launcher makes of it."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.comm.contract import Endpoint
from plait.comm.launcher import Environment
from plait.comm.threads import thread_mesh
from plait.errors import DataError, PeerLost, PlaitError, PlanError, RunError
from plait.plans.training_exchanges import step_bytes
from plait.trainer.process import run_rank
from plait.trainer.protocol import Finished, Ready, StepDone, ToFront
from plait.trainer.torchrun import Follower, Leader
from plait.trainer.train_options import TrainOptions
from plait.trainer.train_plan import Started
from plait.trainer.train_prepare import Prepared, prepare
from plait.trainer.train_watch import TrainWatch, Unwatched

torch.set_num_threads(1)

TIED = "llama:layers=4,hidden=16,heads=2,tied=1"
OPTIONS = TrainOptions(batch=8, sequence_length=8, steps=3, timeline=(1,), check_every=0, threads=1)


class Front:
    """Keeps what one rank says."""

    def __init__(self) -> None:
        self.said: list[ToFront] = []

    def send(self, message: ToFront) -> None:
        self.said.append(message)

    @property
    def steps(self) -> list[StepDone]:
        return [message for message in self.said if isinstance(message, StepDone)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("the same text again and again, " * 20)
    return file


def prepared(text: Path, **mesh: Any) -> Prepared:
    return prepare(TIED, [text], replace(OPTIONS, **mesh), Unwatched(), Started(1))


def together(size: int, work: Callable[[Endpoint], object]) -> dict[int, BaseException]:
    """`work` on every rank of a mesh of threads; what each failed with."""
    failed: dict[int, BaseException] = {}

    def run(endpoint: Endpoint) -> None:
        try:
            with endpoint:
                work(endpoint)
        except BaseException as error:
            failed[endpoint.rank] = error

    threads = [threading.Thread(target=run, args=(endpoint,), daemon=True) for endpoint in thread_mesh(size, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return failed


def trained(ready: Prepared) -> list[Front]:
    fronts = [Front() for _ in range(ready.plan.layout.ranks)]
    failed = together(
        len(fronts), lambda endpoint: run_rank(ready.work, ready.ids, endpoint, fronts[endpoint.rank], host="here")
    )
    assert failed == {}
    return fronts


def test_ranks_tell_what_they_hold_every_step_and_their_peak(text: Path) -> None:
    fronts = trained(prepared(text, dp=2, pp=2, micro_batches=2))
    for rank, front in enumerate(fronts):
        ready, *steps, finished = front.said
        assert isinstance(ready, Ready)
        assert isinstance(finished, Finished)
        assert (ready.rank, finished.rank, [one.step for one in front.steps]) == (rank, rank, [0, 1, 2])
        assert len(steps) == 3
        assert ready.weight_bytes > 0
        assert finished.peak_bytes > 0
        assert [one.spans is not None for one in front.steps] == [False, True, False]
        assert all(0 < one.compute_s < one.wall_s for one in front.steps)


@pytest.mark.parametrize(
    "mesh",
    [
        {"dp": 2, "pp": 2, "micro_batches": 2},
        {"tp": 2, "pp": 2, "virtual": 2, "micro_batches": 2, "sequence": True},
        {"dp": 3, "batch": 6, "zero": 1},
    ],
    ids=str,
)
def test_a_mesh_learns_as_one_rank_does_and_sends_the_bytes_of_the_rule(text: Path, mesh: dict[str, Any]) -> None:
    alone = trained(prepared(text, batch=mesh.get("batch", 8)))[0]
    ready = prepared(text, **mesh)
    fronts = trained(ready)
    expected = step_bytes(ready.beginning.spec, ready.plan, OPTIONS.buckets)
    for number, one in enumerate(alone.steps):
        told = [front.steps[number] for front in fronts]
        assert len({(other.loss, other.grad_norm, other.valid) for other in told}) == 1
        assert told[0].loss == pytest.approx(one.loss, rel=1e-5)
        assert told[0].grad_norm == pytest.approx(one.grad_norm, rel=1e-4)
        assert {axis: sum(other.sent_bytes[axis] for other in told) for axis in expected} == expected
    assert alone.steps[2].loss < alone.steps[0].loss


# --- under a launcher ---------------------------------------------------------------------------------------


class Launched:
    """Ranks 1 and on of a launcher, each a thread; `lead` is what the test does as rank 0."""

    def __init__(self, size: int, prepare_for: Callable[[int], Prepared], hosts: Sequence[int] = ()) -> None:
        self.size, self.prepare_for = size, prepare_for
        self.hosts = hosts or [0] * size
        self.ended: dict[int, bool] = {}

    def here(self, rank: int) -> Environment:
        count = len(set(self.hosts))
        return Environment(rank, self.size, 0, self.hosts.count(self.hosts[rank]), self.hosts[rank], count, "x", 1, "x")

    def run(self, watch: TrainWatch | None = None) -> Any:
        found: list[Any] = []

        def work(endpoint: Endpoint) -> None:
            rank = endpoint.rank
            if rank == 0:
                leader = Leader(endpoint, self.here(0))
                found.append(leader.run(lambda _: self.prepare_for(0), watch or Unwatched()))
            else:
                self.ended[rank] = Follower(endpoint, self.here(rank)).run(lambda _: self.prepare_for(rank))

        self.failed = together(self.size, work)
        if 0 in self.failed:
            raise self.failed[0]
        return found[0]


def test_a_launchers_ranks_train(text: Path) -> None:
    launched = Launched(4, lambda rank: prepared(text, dp=2, pp=2, micro_batches=2))
    following = launched.run()
    assert launched.ended == {1: True, 2: True, 3: True}
    assert [line.step for line in following.lines] == [0, 1, 2]
    assert following.prediction.figures["comm_bytes"] == following.lines[1].comm_bytes
    assert sorted(following.finished) == [0, 1, 2, 3]


def test_ranks_of_two_hosts_have_one_timeline(text: Path) -> None:
    launched = Launched(2, lambda rank: prepared(text, pp=2, micro_batches=2), hosts=(0, 1))
    following = launched.run()
    timeline = following.steps.timelines[1]
    assert timeline.hosts == {0: "host 0", 1: "host 1"}
    assert list(timeline.clocks) == ["host 1"]
    assert abs(timeline.clocks["host 1"].offset_s) < 1
    assert following.prediction.note == (
        "only bytes are predicted: the plan names no cluster, and links between hosts were not measured"
    )


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"seed": 1}, "settings"),
        ({"steps": 2}, "settings"),
        ({"micro_batches": 4}, "plan"),
        ({"micro_batches": 4, "lr": 1.0}, "plan and settings"),
    ],
)
def test_a_rank_with_other_arguments_is_named(text: Path, changes: dict[str, Any], differs: str) -> None:
    launched = Launched(2, lambda rank: prepared(text, **{"dp": 2, **(changes if rank == 1 else {})}))
    with pytest.raises(PlanError) as error:
        launched.run()
    host = f"host {platform.node()}"
    assert str(error.value) == (
        f"rank 1 on {host} has another {differs} than rank 0 on {host}: start all ranks with the same arguments, and "
        "put the same files on every host"
    )
    assert launched.ended == {1: False}


def test_threads_may_differ(text: Path) -> None:
    launched = Launched(2, lambda rank: prepared(text, dp=2, threads=1 + rank))
    assert len(launched.run().lines) == 3
    torch.set_num_threads(1)


def test_a_rank_with_another_text_is_named_and_so_is_one_without(text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("another text, as long or longer than it must be " * 9)
    launched = Launched(3, lambda rank: prepared(other if rank == 2 else text, dp=3, batch=6), hosts=(0, 0, 1))
    with pytest.raises(PlanError) as error:
        launched.run()
    assert str(error.value) == (
        "rank 2 on host 1 has another text than rank 0 on host 0: start all ranks with the same arguments, and put the "
        "same files on every host"
    )
    assert launched.ended == {1: False, 2: False}
    other.unlink()
    with pytest.raises(DataError) as missing:
        launched.run()
    assert str(missing.value) == f"rank 2: --data {other}: no such file or directory"


def test_what_rank_0_cannot_prepare_ends_all(text: Path) -> None:
    def prepare_for(rank: int) -> Prepared:
        raise DataError("no text")

    launched = Launched(2, prepare_for)
    with pytest.raises(DataError) as error:
        launched.run()
    assert str(error.value) == "no text"
    assert launched.ended == {1: False}


def test_a_loss_that_is_no_number_is_said_once(text: Path) -> None:
    def prepare_for(rank: int) -> Prepared:
        return prepared(text, dp=2, lr=1e30, optimizer="sgd", clip=0.0)

    launched = Launched(2, prepare_for)
    with pytest.raises(RunError) as error:
        launched.run()
    assert not isinstance(error.value, PeerLost)
    assert str(error.value).startswith("step 1: ")
    assert launched.ended == {1: False}


def test_a_rank_that_breaks_is_named(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.trainer import process

    step = process.TrainingRank.step

    def breaking(self: Any, number: int, batch: Any) -> Any:
        if number == 1 and self._worker._replica == 1:
            raise RunError("the disk is full")
        return step(self, number, batch)

    monkeypatch.setattr(process.TrainingRank, "step", breaking)
    launched = Launched(2, lambda rank: prepared(text, dp=2))
    with pytest.raises(PlaitError) as error:
        launched.run()
    assert str(error.value) == "rank 1 (stage 0, layers 0 to 3, replica 1 of 2): the disk is full"
    assert launched.ended == {1: False}
