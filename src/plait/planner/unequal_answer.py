"""The answer on unequal machines: candidates ranked, machines that are left out, what does not fit, and break-evens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from plait.costs.states import rank_parameters, state_bytes
from plait.errors import CapacityError
from plait.planner.result import BreakEven, Candidate, Choice, DeviceMemory, Rejected
from plait.planner.space import kind_of
from plait.planner.training_break_even import FAR, KindAt, crossing, flip
from plait.planner.training_words import split_words
from plait.planner.unequal_costs import Counted, Machines, Way, counted
from plait.planner.unequal_plans import plan_of
from plait.plans.training import TrainingPlan
from plait.spec.cluster import Device
from plait.units import format_bytes, format_seconds

_OTHERS = 30.0
_COMPARED = 100
"""So many of the best ways are looked at again over links so many times as fast, and as slow."""


def answer(
    machines: Machines,
    devices: Sequence[Device],
    found: Sequence[Counted],
    alone: Sequence[Choice],
    refused: Sequence[Rejected],
    top: int,
    kind_at: KindAt | None,
) -> Choice:
    """All ways ranked; `alone` are the answers for the equal devices of each sort. Errors: CapacityError."""
    fitting = sorted((one for one in found if one.over_bytes <= 0), key=lambda one: one.figures["step_s"])
    candidates = [_candidate(machines, one) for one in _distinct(fitting)]
    # the same devices and split, counted as equal ones, are no other way unless they are faster
    best: dict[tuple[object, ...], Candidate] = {}
    for one in sorted([*candidates, *(one for choice in alone for one in choice.candidates)], key=_rank):
        setup = one.plan.setup if isinstance(one.plan, TrainingPlan) else None
        best.setdefault((one.devices, one.split, one.schedule, setup), one)
    candidates = list(best.values())
    if not candidates:
        raise CapacityError(_nothing(machines, devices, found))
    rejected = (*refused, *_rejected(found), *(one for choice in alone for one in choice.rejected))
    break_evens = () if kind_at is None else _break_evens(machines, fitting, candidates[0].kind, kind_at)
    return _choice(candidates, devices, top, rejected, break_evens)


def _rank(one: Candidate) -> tuple[float, int]:
    return one.predicted["step_s"], one.split.ranks


def _distinct(found: Sequence[Counted]) -> list[Counted]:
    """The best of every pipeline: the same devices and schedule with another micro-batch or recompute are one."""
    best: dict[tuple[object, ...], Counted] = {}
    for one in sorted(found, key=lambda one: one.figures["step_s"]):
        names = tuple(members[0].name for members in one.way.members)
        best.setdefault((names, one.way.setup.split, one.way.setup.schedule), one)
    return list(best.values())


def _candidate(machines: Machines, one: Counted) -> Candidate:
    way, setup = one.way, one.way.setup
    plan = plan_of(machines, way)
    return Candidate(
        kind=kind_of(setup.split),
        split=setup.split,
        cut=way.cut,
        devices=tuple(stage.devices for stage in plan.layout.stages),
        schedule=setup.schedule,
        micro_batches=setup.micro_batches,
        recompute=setup.recompute,
        zero=setup.zero,
        predicted=one.figures,
        memory=tuple(
            DeviceMemory(device.name, need, device.memory_bytes)
            for members, need in zip(way.members, one.need_bytes, strict=True)
            for device in members
        ),
        plan=plan,
        simulated=True,
        note="; ".join(dict.fromkeys(machines.model(members[0]).note for members in way.members)),
    )


def _choice(
    candidates: Sequence[Candidate],
    devices: Sequence[Device],
    top: int,
    rejected: tuple[Rejected, ...],
    break_evens: tuple[BreakEven, ...],
) -> Choice:
    chosen = candidates[0]
    kinds: dict[str, Candidate] = {}
    for one in candidates:
        kinds.setdefault(one.kind, one)
    shown = list(candidates[:top])
    shown += [one for one in kinds.values() if one not in shown]
    others = [replace(one, loses=_loses(chosen, one)) for one in shown[1:]]
    reason = "; ".join(_reasons(chosen, candidates, devices))
    chosen = replace(chosen, loses="", plan=replace(chosen.plan, reason=reason))
    return Choice("step", chosen, (chosen, *others), rejected, break_evens, reason)


def _reasons(chosen: Candidate, candidates: Sequence[Candidate], devices: Sequence[Device]) -> list[str]:
    plan = chosen.plan
    assert isinstance(plan, TrainingPlan)
    step = format_seconds(chosen.predicted["step_s"])
    words = [f"{split_words(plan.setup)} on {_named(_used(chosen))}: predicted {step} a step"]
    idle = [device.name for device in devices if device.name not in _used(chosen)]
    if idle:
        with_all = next((one for one in candidates if len(_used(one)) == len(devices)), None)
        words.append(f"{_named(idle)} {'is' if len(idle) == 1 else 'are'} left out")
        if with_all is not None:
            words[-1] += f", with all {len(devices)} it takes {format_seconds(with_all.predicted['step_s'])}"
    other = next((one for one in candidates if one.kind != chosen.kind), None)
    if other is not None:
        words.append(f"the best of another kind, {other.kind}, takes {format_seconds(other.predicted['step_s'])}")
    return words


def _loses(chosen: Candidate, one: Candidate) -> str:
    more = {
        name: one.predicted[f"{name}_s"] - chosen.predicted[f"{name}_s"] for name in ("compute", "transfer", "wait")
    }
    by = max(more, key=lambda name: more[name])
    step = one.predicted["step_s"] - chosen.predicted["step_s"]
    return f"{_named(_used(one))}: +{format_seconds(max(0.0, step))} a step, most of it {by}"


def _used(one: Candidate) -> list[str]:
    return list(dict.fromkeys(name for stage in one.devices for name in stage))


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def _rejected(found: Sequence[Counted]) -> list[Rejected]:
    """Pipelines that do not fit, by their length; the nearest of them stands for all."""
    groups: dict[tuple[int, int], list[Counted]] = {}
    for one in found:
        if one.over_bytes > 0:
            groups.setdefault((one.way.setup.split.dp, one.way.setup.split.pp), []).append(one)
    made = []
    for (dp, pp), ways in sorted(groups.items()):
        near = min(ways, key=lambda one: one.over_bytes)
        free = [min(device.memory_bytes for device in members) for members in near.way.members]
        stage = max(range(pp), key=lambda stage: near.need_bytes[stage] - free[stage])
        need, have, name = near.need_bytes[stage], free[stage], near.way.members[stage][0].name
        reason = f"memory: {name} would need at least {format_bytes(need)} and has {format_bytes(have)}"
        made.append(Rejected({"dp": dp, "pp": pp}, len(ways), reason, float(need), float(have)))
    return made


def _break_evens(machines: Machines, fitting: Sequence[Counted], winner: str, kind_at: KindAt) -> tuple[BreakEven, ...]:
    """At how many times the bandwidth of all links another kind is chosen in place of the winner's; the nearest.

    Where to look is found from the ways that are best here, and over far faster and far slower links; `kind_at` plans
    again, and says whether that is true.
    """
    ways: dict[str, list[Way]] = {}
    different: dict[tuple[object, ...], Counted] = {}
    for one in fitting:
        setup = one.way.setup
        different.setdefault((setup.split, setup.schedule, setup.micro_batch), one)
    fitting = list(different.values())
    for by in (1.0, _OTHERS, 1 / _OTHERS):
        _add_best(machines, fitting, ways, by)
    found = []
    for far in (1 / FAR, FAR):
        guess = _nearest(machines, ways, winner, far) if winner in ways else None
        true = flip(kind_at, winner, far, None if guess is None else guess[0])
        if true is not None:
            factor, kind = true
            way, on = ("from", " on") if factor > 1 else ("below", "")
            text = f"{kind} wins {way} {factor:.3g} × the bandwidth of these links{on}, in place of {winner}"
            found.append(BreakEven(kind, "bandwidth of all links, × what it is", factor, text))
    return tuple(found)


def _add_best(machines: Machines, fitting: Sequence[Counted], ways: dict[str, list[Way]], by: float) -> None:
    """Add the best way of each kind over links `by` times as fast."""
    again = counted(machines.faster(by), [one.way for one in fitting[:_COMPARED]])
    kinds: dict[str, Way] = {}
    for one in sorted(again, key=lambda one: one.figures["step_s"]):
        kinds.setdefault(kind_of(one.way.setup.split), one.way)
    for kind, way in kinds.items():
        known = ways.setdefault(kind, [])
        if way not in known:
            known.append(way)


def _nearest(machines: Machines, ways: dict[str, list[Way]], winner: str, far: float) -> tuple[float, str] | None:
    """The factor between 1 and `far`, and the kind, that first takes as long as the winner's."""

    def best_s(kind: str, by: float) -> float:
        return min(one.figures["step_s"] for one in counted(machines.faster(by), ways[kind]))

    def ahead_s(kind: str, by: float) -> float:
        return best_s(kind, by) - best_s(winner, by)

    crossings = [(crossing(partial(ahead_s, kind), far), kind) for kind in ways if kind != winner]
    reached = [(factor, kind) for factor, kind in crossings if factor is not None]
    return (min if far > 1 else max)(reached) if reached else None


def _nothing(machines: Machines, devices: Sequence[Device], found: Sequence[Counted]) -> str:
    spec = machines.spec
    free = sum(device.memory_bytes for device in devices)
    need = state_bytes(rank_parameters(spec, [(0, spec.layers)]), machines.model(devices[0]).recipe).total_bytes
    words = (
        f"{spec.name} does not fit on these {len(devices)} devices: weights, gradients and optimizer states alone take "
        f"{format_bytes(need)}, all devices together have {format_bytes(free)}"
    )
    if need > free:
        return f"{words}, {format_bytes(need - free)} are missing"
    if not found:
        return f"{words}, but no cut puts them where the memory is, beside what a micro-batch leaves"
    near = min(found, key=lambda one: one.over_bytes)
    missing = format_bytes(near.over_bytes)
    return f"{words}; the nearest way misses {missing} on a device ({split_words(near.way.setup)})"
