"""What the simulator asks of costs, whoever knows them: a calibration of this host, or formulas of a far one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch

Load = int
"""Positions that a computation computes at once: few of them ask for the memory's bandwidth, many for the cores."""


class Running(NamedTuple):
    """A stage that is computing, and its load."""

    stage: int
    load: Load


SLEEPS_AFTER_S = 1e-3
"""How long a rank and its threads spin before they sleep, about."""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """A directed link: a message occupies it for bytes ÷ bandwidth, and is there `latency_s` later.

    A receiver that has waited for more than `SLEEPS_AFTER_S` has gone to sleep, and goes on `wake_s` later still.
    `buffered`: a card sends it, so that the message keeps the link and not the sender's lane: what comes after it in
    the lane goes on at once, and the next message waits until the link is free. Over shared memory the sender copies.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    wake_s: float = 0.0
    buffered: bool = False

    def occupied_s(self, message_bytes: float) -> float:
        """Seconds for which a message of this size keeps the link."""
        return message_bytes / self.bandwidth_bytes_per_s

    def transfer_s(self, message_bytes: float) -> float:
        """Seconds from the send's begin until the message is there."""
        return self.latency_s + self.occupied_s(message_bytes)


FREE = LinkCost(0.0, float("inf"))
"""A link that costs nothing."""


class Exchange(NamedTuple):
    """What a rank of a stage exchanges inside a computation, over the tensor and expert axes.

    `seconds`: what is not hidden behind computing. `sent_bytes`: what the rank puts on its links, of several the one
    that sends most. `each`: what each rank of a tensor group does, in their order; empty where all send as much.
    """

    seconds: float = 0.0
    sent_bytes: int = 0
    each: tuple[int, ...] = ()

    @classmethod
    def of(cls, seconds: float, sent: Sequence[int]) -> Exchange:
        """The exchange of a tensor group whose ranks send these bytes."""
        return cls(seconds, max(sent, default=0), tuple(sent) if len(set(sent)) > 1 else ())

    def by_rank(self, ranks: int) -> tuple[int, ...]:
        """Bytes of each of so many ranks."""
        return self.each or (self.sent_bytes,) * ranks


class Costs(Protocol):
    """Seconds of what a plan does. Pure: the same arguments give the same answer.

    Of a micro-batch only how long its rows are, where they start and which of them sample may matter, never whose they
    are: the simulator asks once for all micro-batches of the same shape.
    """

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """Seconds of a computation of the stage (F, B, I, W, O or N), while nothing else computes on its host.

        What it recomputes and what it exchanges inside (tensor and expert axes) are in it. An `OPTIMIZER` step is of
        the whole stage, a `NORM` of its position: `micro_batch` is empty then. What N waits for others is not in it.
        """

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """What that computation exchanges inside; its seconds are some of `compute_s`, not more.

        Bytes are those of each rank of a tensor group (`Exchange.by_rank`), and in generation exactly what its links
        are given (`plans.exchanges`). Of a stage that has one rank only a `NORM` is asked.
        """

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """Seconds of a stage's `REDUCE_GRADIENTS`, `REDUCE_TIED` or `GATHER_PARAMETERS`; of one of `parts` equal parts.

        What a `REDUCE_TIED` waits for the other stage is not in it.
        """

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        """Bytes that each rank of the stage puts on its links for it; for one of `parts` equal parts."""

    def load(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Load:
        """What that forward asks of its host, beside others; few different values, so that answers can be kept."""

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        """The speed of each of the stages that compute at the same time on one host; 1 is the speed alone."""

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The directed link from stage `source` to stage `to`."""


class Held(NamedTuple):
    """Bytes that a forward leaves on each of its stage's devices until the backward takes them.

    `until_input` are free when the gradient of the input is made (I, or B), `until_weight` when that of the weights is
    (W, or B). What I itself leaves for W counts as if it had been there from the forward on: M_B = until_input +
    until_weight and M_W = until_weight of Qi et al., "Zero Bubble Pipeline Parallelism" (2023), section 3.
    """

    until_input_bytes: int = 0
    until_weight_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All that the forward leaves."""
        return self.until_input_bytes + self.until_weight_bytes


class Memory(Protocol):
    """Bytes on one device of a stage. Pure: the same arguments give the same answer.

    Of a micro-batch only how long its rows are and which of them sample may matter: what depends on where they start,
    the KV cache, is there the whole time. For generation `static_bytes` and workspace are all there is.
    """

    def static_bytes(self, layout: Layout, stage: int) -> int:
        """What lies there the whole time: weights, gradients, optimizer states; weights and KV cache."""

    def held(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Held:
        """What the stage's forward of a micro-batch leaves."""

    def working_bytes(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> int:
        """What is there only while the action runs: its workspace, and for B and I what was recomputed."""


@dataclass(frozen=True, slots=True)
class FixedMemory:
    """Bytes that do not depend on the work, by stage: for teaching, tests and bounds. What is not named is 0."""

    static: Mapping[int, int] = field(default_factory=dict)
    left: Mapping[int, Held] = field(default_factory=dict)
    working: Mapping[tuple[int, Kind], int] = field(default_factory=dict)

    def static_bytes(self, layout: Layout, stage: int) -> int:
        """The stage's."""
        return self.static.get(stage, 0)

    def held(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Held:
        """The stage's, whatever the micro-batch."""
        return self.left.get(stage, Held())

    def working_bytes(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> int:
        """The stage's for that kind."""
        return self.working.get((stage, kind), 0)


@dataclass(frozen=True, slots=True)
class FixedCosts:
    """Costs that do not depend on the work: for teaching, tests and bounds. What is not named costs 0 s.

    `seconds`: of each stage's forward. `kind_seconds`: of any (stage, kind), before `seconds`. `exchanges`: inside the
    computations of any (stage, kind); of a reduction its bytes.
    `cores`, where given, are what stages of one host share evenly: each thread gets at most one.
    """

    seconds: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[tuple[int, int], LinkCost] = field(default_factory=dict)
    cores: int | None = None
    any_link: LinkCost = FREE
    kind_seconds: Mapping[tuple[int, Kind], float] = field(default_factory=dict)
    exchanges: Mapping[tuple[int, Kind], Exchange] = field(default_factory=dict)

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """The stage's seconds for that kind, whatever the micro-batch."""
        plain = self.seconds.get(stage, 0.0) if kind is Kind.FORWARD else 0.0
        return self.kind_seconds.get((stage, kind), plain) if self.kind_seconds else plain

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """The stage's for that kind."""
        return self.exchanges.get((stage, kind), Exchange())

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """The stage's seconds for that kind, divided evenly over the parts."""
        return self.kind_seconds.get((stage, kind), 0.0) / parts

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        """The stage's bytes for that kind, divided evenly over the parts."""
        return self.exchanges.get((stage, kind), Exchange()).sent_bytes // parts

    def load(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Load:
        """Always the same: speeds do not depend on it."""
        return 0

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        """Cores ÷ threads where the threads are more than the cores."""
        return core_shares(layout, running, self.cores)

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The named link, or `any_link`."""
        return self.links.get((source, to), self.any_link)


def core_shares(layout: Layout, running: Sequence[Running], cores: int | None) -> tuple[float, ...]:
    """Speeds of stages whose threads share `cores` evenly, at most one core each (None: as many as they want).

    Relative to the speed alone: a stage with more threads than there are cores was measured like that.
    """
    threads = [layout.stages[one.stage].threads * len(layout.stages[one.stage].ranks) for one in running]
    together = _cores_each(sum(threads), cores)
    return tuple(together / _cores_each(count, cores) for count in threads)


def _cores_each(threads: int, cores: int | None) -> float:
    return 1.0 if cores is None else min(1.0, cores / threads)
