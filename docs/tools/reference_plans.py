"""The pages on actions and on schedules, from the modules that define them."""

from __future__ import annotations

import inspect
from importlib import import_module

from writing import code, prose, table

from plait.plans import notation, rules
from plait.plans.action import Kind, Lane
from plait.schedules import closed
from plait.schedules.generation import LAYERWISE, PIPELINED
from plait.schedules.lowered import lower
from plait.schedules.training import TRAINING_SCHEDULES, V_SHAPED, compute_order

MODULES = {
    "layerwise": "layerwise",
    "gpipe": "gpipe",
    "1f1b": "one_f_one_b",
    "interleaved": "interleaved",
    "zb-h1": "zero_bubble",
    "zb-h2": "zero_bubble",
    "zb-v": "zb_v",
    "dualpipe-v": "dualpipe_v",
}
"""Where each schedule is written; a new one without an entry fails the page."""

POSITIONS, MICRO_BATCHES = 4, (4, 8, 16)


def actions_page() -> str:
    """Kinds, lanes, notation, and what waits for what."""
    rows = [(code(kind.value), _words(kind.name), kind.lane.value, _moves(kind)) for kind in Kind]
    return "\n\n".join(
        [
            "# Actions and their notation",
            prose(notation),
            "## Kinds",
            table(("written", "kind", "lane", "message"), rows),
            prose(Kind),
            f"Lanes: {', '.join(lane.value for lane in Lane)}. {prose(Lane)}",
            "The words for all of these are in [the vocabulary](../vocabulary.md).",
            "## What waits for what",
            prose(rules),
            "### Waits, across lanes",
            prose(rules.waits),
            "### Order, within a lane",
            prose(rules.follows),
            "### Meetings",
            prose(rules.meetings),
        ]
    )


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def _moves(kind: Kind) -> str:
    return "sends" if kind.sends else "receives" if kind.receives else ""


def schedules_page() -> str:
    """Every schedule: what it is, its order, its bubble by the closed form."""
    words = [
        "# Schedules",
        f"Generation has two, {code(LAYERWISE)} and {code(PIPELINED)}; `auto` simulates both and says why it took one. "
        f"Training has {len(TRAINING_SCHEDULES)}. Each is one pure function; the pictures below are its module's own.",
        "## Bubble and memory, by the closed forms",
        prose(closed),
        f"Below, {POSITIONS} positions; forward, and both halves of the backward, take the same time; links are free. "
        "≥: a bubble that the closed form only bounds from below, since the schedule likes other numbers of "
        "micro-batches. In flight: activations that the fullest position holds, in those of one micro-batch in one "
        "of its stages.",
        _figures(),
    ]
    told: set[str] = set()
    for name in TRAINING_SCHEDULES:
        words.append(f"## {name}")
        module = import_module(f"plait.schedules.{MODULES[name]}")
        if module.__name__ not in told:
            words.append(_drawn(module))
            told.add(module.__name__)
        words.append(f"{POSITIONS} positions, {MICRO_BATCHES[0]} micro-batches, as computed:")
        words.append("\n".join(f"    {line}" for line in _order(name)))
    return "\n\n".join(words)


def _virtual(name: str) -> int:
    return 2 if name in (*V_SHAPED, "interleaved") else 1


def _order(name: str) -> list[str]:
    order = compute_order(name, POSITIONS, _virtual(name), MICRO_BATCHES[0])
    return [f"position {number}  {line}" for number, line in enumerate(lower(order).drawn())]


def _figures() -> str:
    headings = ("schedule", "stages a position", *(f"bubble, {m} micro-batches" for m in MICRO_BATCHES), "in flight")
    rows = []
    for name in TRAINING_SCHEDULES:
        virtual = _virtual(name)
        held = max(closed.in_flight(name, POSITIONS, virtual, MICRO_BATCHES[-1]))
        rows.append((code(name), str(virtual), *(_bubble(name, virtual, m) for m in MICRO_BATCHES), f"{held:g}"))
    return table(headings, rows)


def _bubble(name: str, virtual: int, micro_batches: int) -> str:
    step_s = closed.step_s(name, POSITIONS, virtual, micro_batches, 1.0, 1.0, 1.0)
    share = 1 - 3.0 * virtual * micro_batches / step_s
    sign = "" if closed.exact(name, POSITIONS, virtual, micro_batches) else "≥ "
    return f"{sign}{share * 100:.1f} %"


def _drawn(module: object) -> str:
    """The module's docstring, its pictures as code: they stand at the margin in some modules, indented in others."""
    lines, inside = [], False
    for line in (inspect.getdoc(module) or "").splitlines():
        picture = line.lstrip().startswith(("stage ", "position ")) or " stages, " in line or " positions, " in line
        picture = picture and not line.rstrip().endswith(".")
        if picture and not inside and lines[-1:] != [""]:
            lines.append("")
        lines.append(f"    {line.lstrip()}" if picture else line)
        inside = picture
    return "\n".join(lines)
