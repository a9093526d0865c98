"""What the data axis costs: gradients reduced, the optimizer's update, parameters gathered, by ZeRO stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from plait.costs.collectives import Group, all_gather_s, all_reduce_s, reduce_scatter_s, sent_bytes
from plait.costs.profiles import DeviceRates
from plait.costs.states import RankParameters
from plait.costs.topology import Fabric, gradient_reach, group_on
from plait.plans.split import Split, TrainingSetup


class StageTail(NamedTuple):
    """What follows the last backward of some parameters: reduction, optimizer, ZeRO's gathering; bytes a rank sends."""

    reduce_s: float
    gather_s: float
    optimizer_s: float
    reduced_bytes: float
    gathered_bytes: float

    @property
    def total_s(self) -> float:
        """One after another."""
        return self.reduce_s + self.gather_s + self.optimizer_s

    @property
    def sent_bytes(self) -> float:
        """Of reduction and gathering."""
        return self.reduced_bytes + self.gathered_bytes


class Repeated(NamedTuple):
    """What ZeRO-2 and 3 do for every micro-batch: seconds that nothing hides, and bytes a rank sends."""

    seconds: float = 0.0
    sent_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Reductions:
    """Seconds of the data axis on equal devices. `item_bytes`: of a weight that is computed with.

    Gradients of every parameter are reduced over dp × ep × cp, of experts over dp × cp.
    """

    fabric: Fabric
    rates: DeviceRates
    item_bytes: int

    def groups(self, split: Split) -> tuple[Group, Group]:
        """Those that reduce dense parameters, and experts."""
        per_host, ranks = self.fabric.devices_per_host, split.ranks
        dense, experts = (gradient_reach(split, per_host, experts=experts) for experts in (False, True))
        return group_on(self.fabric, dense, ranks), group_on(self.fabric, experts, ranks)

    def tail(self, setup: TrainingSetup, parameters: RankParameters, tensors: int) -> StageTail:
        """All of a reduction, hidden or not. With ZeRO-3 the next step's forward gathers, not this one's end."""
        profile = self.rates.profile
        reduce_s = gather_s = reduced = gathered = stepped = 0.0
        for count, group in zip(parameters, self.groups(setup.split), strict=True):
            ranks = group.ranks
            stepped += count / (ranks if setup.zero else 1)
            if ranks == 1 or not count:
                continue
            gradients, weights = count * profile.reduced_bytes, count * self.item_bytes
            reduce_s += profile.reduction_s
            if not setup.zero:
                reduce_s += all_reduce_s(gradients, group)
                reduced += sent_bytes("all_reduce", gradients, ranks)
                continue
            reduce_s += reduce_scatter_s(gradients, group)
            reduced += sent_bytes("reduce_scatter", gradients, ranks)
            if setup.zero < 3:
                gather_s += all_gather_s(weights, group)
                gathered += sent_bytes("all_gather", weights, ranks)
        optimizer_s = self.rates.moved_s(stepped * profile.stepped_bytes) + profile.parameter_s * tensors
        return StageTail(reduce_s, gather_s, optimizer_s, reduced, gathered)

    def repeated(self, setup: TrainingSetup, parameters: RankParameters) -> Repeated:
        """ZeRO-2 reduces after every micro-batch, not only the last; ZeRO-3 also gathers weights, forward and backward.

        Source: Rajbhandari et al., "ZeRO" (2020), section 7; with several micro-batches a rank cannot keep the sums
        of what it does not hold. Planned only. What is hidden is taken as for the last reduction.
        """
        if setup.zero < 2:
            return Repeated()
        seconds = sent = 0.0
        for count, group in zip(parameters, self.groups(setup.split), strict=True):
            if group.ranks == 1 or not count:
                continue
            gradients, weights = count * self.rates.profile.reduced_bytes, count * self.item_bytes
            more = setup.micro_batches - 1
            seconds += more * reduce_scatter_s(gradients, group)
            sent += more * sent_bytes("reduce_scatter", gradients, group.ranks)
            if setup.zero == 3:
                seconds += 2 * setup.micro_batches * all_gather_s(weights, group)
                sent += 2 * setup.micro_batches * sent_bytes("all_gather", weights, group.ranks)
        return Repeated((1 - self.rates.profile.hidden_reduction) * seconds, sent)
