"""`plait train` where torchrun (or SLURM) has started the ranks, on one host or several.

every rank    join ──> prepare by itself ──> tell rank 0 what it has ──> hear whether all have the same ──> train
rank 0        beside that hears what the others say between its own steps, and tells the watch

Every rank reads the same arguments, and the text, itself; what it made of them is compared before anything is trained.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from plait.comm.cluster import join
from plait.comm.contract import Endpoint
from plait.comm.launcher import Environment
from plait.errors import PeerLost, PlaitError, PlanError, UsageError
from plait.plans.file import load_plan_file
from plait.plans.training_exchanges import step_bytes
from plait.prober.host import usable_cores
from plait.ranks.failures import Failed, failure
from plait.ranks.grace import grace
from plait.ranks.listener import raise_first, rank_name
from plait.ranks.runs import reserved_run
from plait.ranks.sampled import sampled
from plait.spec.emulation import NOT_UNDER_A_LAUNCHER
from plait.timeline.clock import Exchange, offset_from_exchanges
from plait.timeline.timeline import Clock
from plait.trainer.process import run_rank
from plait.trainer.protocol import Finished, Ready, Stalled, StepDone, ToFront
from plait.trainer.train import Following, TrainResult, remembered
from plait.trainer.train_figures import Prediction
from plait.trainer.train_options import TrainOptions
from plait.trainer.train_plan import Started
from plait.trainer.train_predict import predict
from plait.trainer.train_prepare import Prepared, prepare
from plait.trainer.train_watch import TrainWatch, Unwatched

CAPACITY = 2
"""Messages that a link holds where no plan file says so: as in a plan that is made here."""

ANSWER_S = 600.0
"""How long a rank may take to read its model and text."""

_SETTLE_S = 0.3
_ROUND_TRIPS = 50


class Have(msgspec.Struct, tag="have"):
    """A rank's first word to rank 0: its host, and digests of what it will train by."""

    rank: int
    host: str
    digests: dict[str, str]


class Ping(msgspec.Struct, tag="ping"):
    """Rank 0 asks a rank of another host what its clock says."""


class Pong(msgspec.Struct, tag="pong"):
    """This."""

    clock_s: float


class Begin(msgspec.Struct, tag="begin"):
    """Rank 0's answer: all have the same."""


class Leave(msgspec.Struct, tag="leave"):
    """Rank 0's answer: do not train; it has said why."""


ToRankZero = Have | Pong | Ready | StepDone | Stalled | Finished | Failed
FromRankZero = Ping | Begin | Leave

Prepare = Callable[[TrainWatch], Prepared]


def follow(here: Environment, model: str | None, data: Sequence[Path], options: TrainOptions) -> bool:
    """A rank but rank 0: train until all steps are done; whether it ended well.

    Errors: what this rank failed with alone. What rank 0 says of a lost rank is not said twice on its host.
    """
    with grace():
        try:
            with join(here, _capacity(options), _threads(here, options)) as endpoint:
                return Follower(endpoint, here).run(lambda watch: _prepare(here, model, data, options, watch))
        except PeerLost as error:
            if error.rank == 0 or here.host != 0:
                raise
            return False


def lead(
    here: Environment,
    model: str | None,
    data: Sequence[Path],
    options: TrainOptions,
    *,
    watch: TrainWatch,
    run: Path | None,
) -> TrainResult:
    """Rank 0: see `train.train`. Errors: as there; PeerLost where a rank is lost."""
    with grace(), join(here, _capacity(options), _threads(here, options)) as endpoint, reserved_run(run) as place:
        following = Leader(endpoint, here).run(lambda watch: _prepare(here, model, data, options, watch), watch)
        return following.result(place)


def _prepare(
    here: Environment, model: str | None, data: Sequence[Path], options: TrainOptions, watch: TrainWatch
) -> Prepared:
    if options.emulate is not None:
        raise PlanError(NOT_UNDER_A_LAUNCHER)
    # ranks are numbered host by host
    started = Started(usable_cores(), here.size, here.local_size, here.rank - here.local_rank)
    prepared = prepare(model, data, options, watch, started)
    assert prepared.plan.layout.link_capacity == _capacity(options), "the mesh was joined with another capacity"
    return prepared


def _predicted(here: Environment, prepared: Prepared, watch: TrainWatch) -> Prediction:
    if prepared.cluster is None and here.hosts > 1:
        sent = {"comm_bytes": step_bytes(prepared.beginning.spec, prepared.plan, prepared.work.buckets)}
        return Prediction(
            sent, note="only bytes are predicted: the plan names no cluster, and links between hosts were not measured"
        )
    found = predict(prepared.plan, prepared.beginning.spec, prepared.cluster, prepared.work.buckets, watch.say)
    return remembered(found, prepared)


def _capacity(options: TrainOptions) -> int:
    """What links hold must be known before anything else is; what is wrong with the plan file is said later."""
    if options.plan is None:
        return CAPACITY
    with suppress(UsageError):
        return load_plan_file(options.plan).plan.layout.link_capacity
    return CAPACITY


def _threads(here: Environment, options: TrainOptions) -> int:
    """Threads that the ranks of this host are likely to compute with."""
    return here.local_size * (options.threads or max(1, usable_cores() // here.local_size))


def _run(endpoint: Endpoint, here: Environment, prepared: Prepared, front: Leader | Follower) -> None:
    layout = prepared.plan.layout
    torch.set_num_threads(layout.stages[layout.stage_of(endpoint.rank)].threads)
    with sampled() as sampler:
        run_rank(prepared.work, prepared.ids, endpoint, front, host=_host(here), sampler=sampler)


def _host(here: Environment) -> str:
    """What this rank's host is called in timelines and errors: by its number where there are several."""
    return platform.node() if here.hosts == 1 else f"host {here.host}"


def _where(host: str) -> str:
    return host if host.startswith("host ") else f"host {host}"


class Follower:
    """A rank but rank 0, which posts to rank 0 what it has to tell."""

    def __init__(self, endpoint: Endpoint, here: Environment) -> None:
        self._endpoint, self._here = endpoint, here
        self._encode = msgspec.msgpack.Encoder().encode

    def run(self, prepare: Prepare) -> bool:
        """Prepare, and train if rank 0 says so; whether it did."""
        endpoint = self._endpoint
        try:
            prepared = prepare(Unwatched())
        except PlaitError as error:
            self.send(failure(endpoint.rank, error))
            self._answer()
            return False
        self.send(Have(endpoint.rank, _host(self._here), prepared.digests()))
        if not self._answer():
            return False
        try:
            _run(endpoint, self._here, prepared, self)
        except PeerLost:
            raise
        except Exception as error:  # rank 0 says it
            self.send(failure(endpoint.rank, error))
            endpoint.fail(f"{type(error).__name__}: {error}")
            return False
        return True

    def send(self, message: ToRankZero) -> None:
        """See `process.Front`."""
        self._endpoint.post(0, self._encode(message))

    def _answer(self) -> bool:
        """Whether rank 0 says that training begins."""
        endpoint, decode = self._endpoint, msgspec.msgpack.Decoder(FromRankZero).decode
        while True:
            message = decode(endpoint.wait(lambda: endpoint.poll(0), "the word of rank 0 to begin", ANSWER_S, (0,)))
            if not isinstance(message, Ping):
                return isinstance(message, Begin)
            self.send(Pong(time.perf_counter()))


class Leader:
    """Rank 0 of a launcher's mesh: compares what all have, trains, and passes on what the others tell."""

    def __init__(self, endpoint: Endpoint, here: Environment) -> None:
        self._endpoint, self._here = endpoint, here
        self.hosts: dict[int, str] = {0: _host(here)}
        self.clocks: dict[str, Clock] = {}
        self._decode: msgspec.msgpack.Decoder[ToRankZero] = msgspec.msgpack.Decoder(ToRankZero)
        self._following: Following | None = None
        self._failed: list[Failed] = []
        self._running = set(self.others)

    @property
    def others(self) -> range:
        """All ranks but this one."""
        return range(1, self._endpoint.size)

    def run(self, prepare: Prepare, watch: TrainWatch) -> Following:
        """Prepare, compare, and train; what all ranks have said. Errors: see `lead`."""
        try:
            prepared = prepare(watch)
        except PlaitError:
            self._answer(Leave())
            raise
        self._compare(prepared)
        following = Following(prepared, _predicted(self._here, prepared, watch), watch, self.clocks)
        self._train(prepared, following)
        return following

    def _answer(self, message: FromRankZero) -> None:
        """Tell all others, who wait for it."""
        for rank in self.others:
            self._endpoint.post(rank, msgspec.msgpack.encode(message))

    def _compare(self, prepared: Prepared) -> None:
        """Let the others begin, if all have the same. Errors: what a rank could not prepare; PlanError."""
        try:
            said = [self._word(rank) for rank in self.others]
            self._require_same(prepared, said)
            self._read_clocks()
        except PlaitError:
            self._answer(Leave())
            raise
        self._answer(Begin())

    def _word(self, rank: int) -> ToRankZero:
        endpoint = self._endpoint
        said = endpoint.wait(lambda: endpoint.poll(rank), f"what rank {rank} has", ANSWER_S, (rank,))
        return self._decode.decode(said)

    def _require_same(self, prepared: Prepared, said: Sequence[ToRankZero]) -> None:
        raise_first([one for one in said if isinstance(one, Failed)], lambda rank: f"rank {rank}")
        mine = prepared.digests()
        for other in said:
            assert isinstance(other, Have), other
            self.hosts[other.rank] = other.host
            differing = [name for name, one in mine.items() if other.digests.get(name) != one]
            if differing:
                raise PlanError(
                    f"rank {other.rank} on {_where(other.host)} has another {' and '.join(differing)} than rank 0 on "
                    f"{_where(self.hosts[0])}: start all ranks with the same arguments, and put the same files on "
                    "every host"
                )

    def _read_clocks(self) -> None:
        """How far the clock of each other host is off, asked of its first rank."""
        for host in sorted(set(self.hosts.values()) - {self.hosts[0]}):
            rank = min(rank for rank, name in self.hosts.items() if name == host)
            self.clocks[host] = offset_from_exchanges([self._exchange(rank) for _ in range(_ROUND_TRIPS)])

    def _exchange(self, rank: int) -> Exchange:
        sent_s = time.perf_counter()
        self._endpoint.post(rank, msgspec.msgpack.encode(Ping()))
        answer = self._word(rank)
        assert isinstance(answer, Pong), answer
        return Exchange(sent_s, answer.clock_s, time.perf_counter())

    def _train(self, prepared: Prepared, following: Following) -> None:
        """Rank 0's part, and the others' words until all have finished. Errors: the one that began it."""
        self._following = following
        try:
            _run(self._endpoint, self._here, prepared, self)
            self._endpoint.wait(self._over, "the other ranks to finish")
        except PlaitError as error:
            own = failure(0, error)
            raise_first([*self._failures(), own], self._name, agreeing=True)
            raise

    def _name(self, rank: int) -> str:
        assert self._following is not None
        host = self.hosts.get(rank, "") if self.clocks else ""
        return rank_name(self._following.layout, rank, host)

    def send(self, message: ToFront) -> None:
        """See `process.Front`. What the others have said meanwhile is passed on, too."""
        self._hear(message)
        self._relay()

    def _hear(self, message: ToFront) -> None:
        assert self._following is not None
        self._following.hear(message)

    def _over(self) -> bool | None:
        self._relay()
        return not self._running or None

    def _relay(self) -> None:
        for message in self._said():
            if isinstance(message, Failed):
                self._failed.append(message)
                raise PeerLost(message.message, message.rank)
            assert not isinstance(message, Have | Pong), message
            self._running -= {message.rank} if isinstance(message, Finished) else set()
            self._hear(message)

    def _said(self) -> list[ToRankZero]:
        found: list[ToRankZero] = []
        for rank in self.others:
            while (said := self._endpoint.poll(rank)) is not None:
                found.append(self._decode.decode(said))
        return found

    def _failures(self) -> list[Failed]:
        """What the others failed with, who may still be about to say so."""
        time.sleep(_SETTLE_S)
        with suppress(PlaitError):
            self._failed += [one for one in self._said() if isinstance(one, Failed)]
        return self._failed
