"""Why one way to split a training step wins and another loses, in words and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plait.plans.split import TrainingSetup
from plait.units import format_bytes, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class Links:
    """What explanations say of the machine: devices a host, and bytes/s that a device has within and between hosts."""

    per_host: int
    hosts: int
    within: float
    between: float
    devices: int


Figures = Mapping[str, float]
"""The design's keys, in SI units."""

_ROUNDED = 10
"""Percent of MFU that are told without decimals."""


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
    percent = figures["mfu"] * 100
    # to the percent: a simulated step differs from the search's in the fourth digit
    mfu = f"{percent:.0f}" if percent >= _ROUNDED else f"{percent:.1f}"
    words = f"{split_words(setup)}: predicted {format_seconds(figures['step_s'])} a step, MFU {mfu} %"
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
        yield f"{links.devices - split.ranks} of {links.devices} devices stay out"


def why_it_loses(chosen: TrainingSetup, best: Figures, setup: TrainingSetup, figures: Figures, links: Links) -> str:
    """What makes this one slower than the chosen one: causes that its axes show, and the seconds more a step."""
    more = figures["step_s"] - best["step_s"]
    parts = {name: figures[key] - best[key] for name, key in _PARTS.items()}
    detail = ", ".join(f"{name} {_signed(value)}" for name, value in parts.items())
    if more <= 0:
        return f"as fast, but on no fewer devices ({detail})"
    compared = _Compared(chosen, best, setup, figures, links)
    causes: list[str] = []
    for name in sorted(parts, key=lambda name: -parts[name]):
        # a part that adds little explains nothing
        if parts[name] >= 0.2 * more:
            causes += _CAUSES[name](compared)
    cause = "; ".join(causes[:2]) or f"more {max(parts, key=lambda name: parts[name])}"
    return f"{cause}: {_signed(more)} a step ({detail})"


_PARTS = {"compute": "compute_s", "transfer": "transfer_s", "wait": "wait_s"}


@dataclass(frozen=True, slots=True)
class _Compared:
    """The chosen way and another."""

    chosen: TrainingSetup
    best: Figures
    setup: TrainingSetup
    figures: Figures
    links: Links


def _compute_causes(two: _Compared) -> list[str]:
    chosen, setup = two.chosen, two.setup
    found = []
    if _RECOMPUTED[setup.recompute] > _RECOMPUTED[chosen.recompute]:
        fits = "" if setup.split == chosen.split else ", without which it does not fit"
        found.append(f"{setup.recompute} recompute{fits}")
    if setup.split.ranks < chosen.split.ranks:
        found.append(f"it uses {setup.split.ranks} of the {chosen.split.ranks} devices")
    if chosen.zero > setup.zero and setup.split.dp * setup.split.ep > 1:
        found.append(f"every replica does the whole optimizer step (ZeRO-{setup.zero})")
    if not found:
        found.append("its micro-batches or shards are of a less efficient size")
    return found


def _transfer_causes(two: _Compared) -> list[str]:
    split, chosen, links = two.setup.split, two.chosen.split, two.links
    within, between = format_rate(links.within), format_rate(links.between)
    found = []
    if split.tp > links.per_host >= chosen.tp:
        instead = f": {between} instead of {within}" if links.per_host > 1 else f" ({between})"
        found.append(f"tensor groups of {split.tp} cross hosts{instead}")
    if split.ep > 1 and split.ep * split.tp > links.per_host >= chosen.ep * chosen.tp:
        found.append(f"the experts' all-to-all over {split.ep} crosses hosts: {between} instead of {within}")
    if not found:
        sent = two.figures["comm_bytes"] / split.ranks
        times = sent / max(1.0, two.best["comm_bytes"] / chosen.ranks)
        bytes_ = format_bytes(sent)
        found.append(
            f"a device sends {bytes_} a step, {times:.3g} × as much"
            if times > 1
            else "its exchanges hide less behind computing"
        )
    return found


def _wait_causes(two: _Compared) -> list[str]:
    share, other = (figures["wait_s"] / figures["step_s"] for figures in (two.figures, two.best))
    setup = two.setup
    if setup.split.pp == 1:
        return []
    count = f"{setup.micro_batches} micro-batch{'es' * (setup.micro_batches != 1)}"
    return [
        f"{setup.schedule} over {setup.split.pp} positions waits {share:.1%} of the step and not {other:.1%} ({count})"
    ]


_CAUSES = {"compute": _compute_causes, "transfer": _transfer_causes, "wait": _wait_causes}
_NOTHING_S = 1e-6
_RECOMPUTED = {"none": 0, "selective": 1, "full": 2}


def _signed(seconds: float) -> str:
    if abs(seconds) < _NOTHING_S:
        return "+0 s"
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"
