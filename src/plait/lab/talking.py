"""Stages that only wait, and talk as those of a model would: messages, exchanges and reductions of the right sizes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from plait.comm.contract import Endpoint, Group, Tag, Traffic
from plait.comm.tensor_group import EndpointGroup
from plait.costs.protocol import Costs
from plait.executor.reduction import Op, Reduction
from plait.executor.virtual import VirtualMessages
from plait.lab.waiting import Pause, Waits
from plait.plans.action import Action, Kind, Lane
from plait.plans.exchanges import Collective
from plait.plans.exchanges import Op as Inside
from plait.plans.round import Round
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import action_exchanges, learned_items
from plait.spec.model import ModelSpec
from plait.spec.shards import even_rows
from plait.timeline.timeline import Timeline

T = TypeVar("T")


class Talks(Waits):
    """The stages of rank `rank` of a plan of float32, which wait as `costs` say and then talk.

    `endpoint`: where the exchanges of its tensor group go; needed only where there is one. `buckets`: parts of the last
    backward. `clock`: of the exchanges' times.
    """

    def __init__(
        self,
        costs: Costs,
        plan: TrainingPlan,
        spec: ModelSpec,
        rank: int,
        *,
        endpoint: Endpoint | VirtualExchanges | None = None,
        buckets: int = 1,
        pause: Pause = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(costs, plan.layout, pause)
        layout, self._plan, self._spec = plan.layout, plan, spec
        stage = layout.stage_of(rank)
        self._place = layout.stages[stage].ranks.index(rank)
        self._parts = plan.parts(buckets)
        self._group: EndpointGroup | None = None
        if layout.tp > 1:
            assert endpoint is not None, "a tensor group talks over an endpoint"
            ranks = layout.tensor_group(stage, rank)
            self._group = EndpointGroup(endpoint, ranks, record=True, clock=clock)  # type: ignore[arg-type]
        rows = even_rows(plan.setup.micro_batch * plan.sequence, layout.tp)[self._place % layout.tp]
        self._message = torch.zeros(rows, spec.hidden)

    @override
    def _wait(self, one: Round, action: Action) -> None:
        seconds = self._costs.compute_s(self._layout, action.stage, one.work[action.micro_batch], action.kind)
        self._pause(seconds if action.part is None else seconds / self._parts[action.stage])

    @override
    def forward(self, one: Round, action: Action, message: Tensor | None) -> Tensor | None:
        output = super().forward(one, action, message)
        self._exchange(one, action)
        return output

    @override
    def backward(self, one: Round, action: Action, message: Tensor | None) -> Tensor | None:
        output = super().backward(one, action, message)
        self._exchange(one, action)
        last = action.part is None or action.part == self._parts[action.stage] - 1
        return output if last else None

    @override
    def reduction(self, one: Round, action: Action) -> Reduction | None:
        """G: the sum of gradients over the replicas, or of one of as many parts."""
        if action.kind is not Kind.REDUCE_GRADIENTS:
            return None
        layout = self._plan.layout
        items = learned_items(self._spec, layout, action.stage) // layout.tp
        if action.part is not None:
            parts = self._parts[action.stage]
            items = items * (action.part + 1) // parts - items * action.part // parts
        ranks = tuple(sorted(layout.stages[action.stage].ranks[self._place % layout.tp :: layout.tp]))
        bounds = tuple(items * at // len(ranks) for at in range(len(ranks) + 1))
        return Reduction(Op.ALL_REDUCE, ranks, torch.zeros(items), bounds)

    @override
    def exchanged(self) -> tuple[int, Sequence[tuple[float, float]]]:
        return (0, ()) if self._group is None else self._group.take()

    def _exchange(self, one: Round, action: Action) -> None:
        """All that the ranks of a tensor group exchange inside this action, behind what they compute."""
        if self._group is None:
            return
        layout, setup = self._plan.layout, self._plan.setup
        work, parts = one.work[action.micro_batch], self._parts[action.stage]
        for each in action_exchanges(
            self._spec,
            layout,
            setup,
            action.stage,
            action.kind,
            work,
            action.part,
            parts if action.part is not None else 1,
        ):
            _do(self._group, each)


def _do(group: EndpointGroup, one: Collective) -> None:
    sizes = even_rows(one.rows, group.size) if one.even else (one.rows // group.size,) * group.size
    match one.op:
        case Inside.ALL_REDUCE:
            group.all_reduce(torch.zeros(one.rows, one.row_items))
        case Inside.REDUCE_SCATTER:
            group.reduce_scatter(torch.zeros(one.rows, one.row_items), sizes)
        case Inside.ALL_GATHER:
            group.all_gather(torch.zeros(sizes[group.index], one.row_items), sizes)


class VirtualExchanges:
    """What `EndpointGroup` needs of an endpoint, on a virtual clock: ranks send all that they have to all others."""

    def __init__(self, messages: VirtualMessages, rank: int) -> None:
        self.rank, self._messages = rank, messages
        self._calls = 0

    def traffic(self, to: int) -> Traffic:
        """See `comm.Endpoint`."""
        return self._messages.traffic(to)

    def all_reduce(self, group: Group, tensor: Tensor) -> Tensor:
        """See `comm.Endpoint`; two ranks swap everything, as they do on any transport."""
        for piece in self._swapped(group, tensor):
            tensor += piece
        return tensor

    def all_gather(self, group: Group, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `comm.Endpoint`."""
        pieces = self._swapped(group, tensor)
        pieces.insert(group.ranks.index(self.rank), tensor)
        return torch.cat(pieces)

    def _swapped(self, group: Group, tensor: Tensor) -> list[Tensor]:
        messages, others = self._messages, [rank for rank in group.ranks if rank != self.rank]
        self._calls += 1
        tag = Tag(0, -1, self._calls)  # of no round: no other message is called so
        for other in others:
            messages.wait(partial(self._sent, other, tag, tensor), "room")
        return [messages.wait(partial(self._received, other, tag), "a piece") for other in others]

    def _sent(self, to: int, tag: Tag, tensor: Tensor) -> bool | None:
        return self._moved(self._messages.try_send(to, tag, tensor) or None)

    def _received(self, source: int, tag: Tag) -> Tensor | None:
        return self._moved(self._messages.try_receive(source, tag))

    def _moved(self, found: T) -> T:
        """While this waits, the rank's other lanes go on."""
        if found is None and self._messages.idle is not None:
            self._messages.idle()
        return found


def bytes_by_axis(timeline: Timeline) -> dict[str, int]:
    """What all ranks sent: reductions are dp's, messages between stages pp's, exchanges inside actions tp's."""
    axes = {Lane.REDUCE: "dp", Lane.P2P: "pp", Lane.COMPUTE: "tp"}
    found = Counter(dict.fromkeys(axes.values(), 0))
    for span in timeline.spans:
        found[axes[span.action.kind.lane]] += span.payload_bytes
    return dict(found)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """While it is entered, torch computes in the calling thread alone: ranks as threads share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
