"""Why one way to split a training step wins and another loses, in words and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plait.planner.space import kind_of
from plait.plans.split import TrainingSetup
from plait.units import format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class Links:
    """What explanations say of the machine: devices a host, and bytes/s that a device reaches within and between hosts."""

    per_host: int
    hosts: int
    within: float
    between: float

    @property
    def devices(self) -> int:
        """All of them."""
        return self.per_host * self.hosts


Figures = Mapping[str, float]
"""The design's keys, in SI units."""


def split_words(setup: TrainingSetup) -> str:
    """``dp 6 × pp 64 × tp 8, interleaved of 2, 512 micro-batches of 1, selective recompute, ZeRO-1``."""
    split = setup.split
    sizes = (("dp", split.dp), ("ep", split.ep), ("pp", split.pp), ("tp", split.tp))
    axes = " × ".join(f"{name} {size}" for name, size in sizes if size > 1) or "one device"
    parts = [axes]
    if split.pp > 1:
        parts.append(setup.schedule + (f" of {setup.virtual}" if setup.schedule == "interleaved" else ""))
    parts.append(f"{setup.micro_batches} micro-batch{'es' * (setup.micro_batches != 1)} of {setup.micro_batch}")
    if setup.recompute != "none":
        parts.append(f"{setup.recompute} recompute")
    if setup.zero:
        parts.append(f"ZeRO-{setup.zero}")
    return ", ".join(parts)


def why_it_wins(setup: TrainingSetup, figures: Figures, links: Links) -> str:
    """The winner, its time, and where its axes lie on the links."""
    words = f"{split_words(setup)}: predicted {format_seconds(figures['step_s'])} a step, MFU {figures['mfu']:.1%}"
    return "; ".join((words, *_places(setup, links)))


def _places(setup: TrainingSetup, links: Links) -> Iterator[str]:
    split = setup.split
    inner = split.tp * split.ep
    within, between = format_rate(links.within), format_rate(links.between)
    if split.tp > 1 and split.tp <= links.per_host:
        yield f"tensor groups of {split.tp} stay inside a host ({within})"
    elif split.tp > 1:
        yield f"tensor groups of {split.tp} cross hosts ({between})"
    if split.ep > 1:
        where = f"inside a host ({within})" if inner <= links.per_host else f"across hosts ({between})"
        yield f"the experts' all-to-all over {split.ep} goes {where}"
    if split.pp > 1:
        inside = split.ranks <= links.per_host
        yield f"the pipeline of {split.pp} goes " + (
            f"inside a host ({within})" if inside else f"across hosts ({between})"
        )
    if split.dp > 1:
        inside = inner * split.dp <= links.per_host
        yield f"data over {split.dp} around them" + (" inside a host" if inside else "")
    if split.ranks < links.devices:
        yield f"{links.devices - split.ranks} of {links.devices} devices are left out"


def why_it_loses(chosen: TrainingSetup, best: Figures, setup: TrainingSetup, figures: Figures, links: Links) -> str:
    """What makes this one slower than the chosen one: the cause that its axes show, and the seconds more a step."""
    more = figures["step_s"] - best["step_s"]
    parts = {name: figures[key] - best[key] for name, key in _PARTS}
    detail = ", ".join(f"{name} {_signed(value)}" for name, value in parts.items())
    causes = list(_causes(chosen, best, setup, figures, links, parts))
    cause = "; ".join(causes[:2]) or f"more {max(parts, key=parts.__getitem__)}"
    return f"{cause}, {_signed(more)} a step ({detail})"


_PARTS = (("compute", "compute_s"), ("transfer", "transfer_s"), ("wait", "wait_s"))


def _causes(
    chosen: TrainingSetup,
    best: Figures,
    setup: TrainingSetup,
    figures: Figures,
    links: Links,
    parts: Mapping[str, float],
) -> Iterator[str]:
    split = setup.split
    within, between = format_rate(links.within), format_rate(links.between)
    if split.tp > links.per_host >= chosen.split.tp:
        yield f"tensor groups of {split.tp} cross hosts: {between} instead of {within}"
    if split.ep * split.tp > links.per_host >= chosen.split.ep * chosen.split.tp and split.ep > 1:
        yield f"the experts' all-to-all over {split.ep} crosses hosts: {between} instead of {within}"
    if 2 * split.ranks <= chosen.split.ranks:
        yield f"it uses {split.ranks} devices, not {chosen.split.ranks}"
    elif split.ranks < chosen.split.ranks and parts["compute"] > 0:
        yield f"it leaves {chosen.split.ranks - split.ranks} more devices out"
    if _RECOMPUTED[setup.recompute] > _RECOMPUTED[chosen.recompute] and parts["compute"] > 0:
        yield f"{setup.recompute} recompute, where the chosen one has {chosen.recompute}"
    if parts["wait"] > 0 and figures["bubble"] > best["bubble"]:
        yield (
            f"its {split.pp} stages wait {figures['bubble']:.1%} of the step and not {best['bubble']:.1%}"
            f" ({setup.micro_batches} micro-batches)"
        )
    if parts["transfer"] > max(parts["compute"], parts["wait"], 0) and split.tp <= links.per_host:
        yield f"it moves {figures['comm_bytes'] / max(1.0, best['comm_bytes']):.3g} × the bytes"


_RECOMPUTED = {"none": 0, "selective": 1, "full": 2}


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def kind_words(setup: TrainingSetup) -> str:
    """The kind with its schedule, where there is a pipeline: ``data + pipeline (zb-h1)``."""
    kind = kind_of(setup.split)
    return f"{kind} ({setup.schedule})" if setup.split.pp > 1 else kind
