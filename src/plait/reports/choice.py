"""The planner's answer as a page: what was chosen and why, what every other kind would take, and what cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from rich.text import Text

from plait.planner.result import BreakEven, Candidate, Choice, DeviceMemory, Rejected
from plait.plans.training import TrainingPlan
from plait.reports.marks import ASCII, Glyphs
from plait.reports.picture import wrapped
from plait.spec.preset_files import Sort
from plait.units import format_bytes, format_seconds

_NOTHING_S = 1e-9
"""Fewer seconds are rounding."""

_LITTLE = 1e-3
"""Of the time of a token or a step a smaller part than this is written as 0."""

_GROUPS = 4
"""So many groups of the ways that cannot be are named; and all kinds of which no way can be."""

_BREAK_EVENS = 3

_REPEATED = re.compile(r" \((of a rank's time a token: )?compute [^()]*\)$")
"""At the end of why a plan loses: what the columns above it say too."""

_ROWS = 12
"""More stages than this are shown with equal neighbours in one row."""

OBJECTIVE_KEY = {"latency": "time_per_token_s", "throughput": "decode_tokens_per_s", "ttft": "ttft_s", "step": "step_s"}
_HEADS = {"latency": "a token", "throughput": "decoded", "ttft": "first", "step": "a step"}
_NAMES = {
    "step_s": "time of a step",
    "time_per_token_s": "time per token",
    "ttft_s": "first token after",
    "tokens_per_s": "tokens",
    "decode_tokens_per_s": "decoded tokens",
    "prefill_tokens_per_s": "prefill tokens",
    "mfu": "MFU",
    "bubble": "bubble",
    "comm_bytes": "bytes sent",
    "peak_bytes": "peak memory",
}
_SHORT = re.compile(r"memory: (.+) would need .+ and has .+")
"""A reason whose figures may read alike: both are of many ways, and rounded."""

_DIVIDED = ("step_s", "time_per_token_s")
"""What compute, transfer and wait of a device add up to."""

_COLUMNS = (("compute", "compute_s"), ("transfer", "transfer_s"), ("wait", "wait_s"))


def choice_page(choice: Choice, width: int, glyphs: Glyphs | None = None) -> Text:
    """The whole answer in lines of at most `width` columns, in ASCII where `glyphs` are."""
    parts = [_chosen(choice), _stages(choice.chosen), _others(choice), _rejected(choice), _break_even(choice)]
    parts.append(_notes(choice))
    lines = Text("\n\n").join([part for part in parts if part])
    page = Text("\n").join(folded for line in lines.split("\n", allow_blank=True) for folded in _folded(line, width))
    if glyphs is ASCII:
        page.plain = page.plain.replace("µ", "u").replace("×", "x").encode("ascii", "replace").decode("ascii")
    return page


def figure(key: str, value: float) -> str:
    """A predicted figure in words, by its key."""
    if key.endswith("_per_s"):
        return f"{value:.3g} tokens/s" if value < 100 else f"{value:,.0f} tokens/s"
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key in ("bubble", "mfu"):
        return f"{value * 100:.1f} %"
    return format_seconds(value if abs(value) >= _NOTHING_S else 0.0)


def split_text(candidate: Candidate) -> str:
    """``dp 2 × pp 4 × tp 8``; axes of size 1 left out."""
    split = candidate.split
    sizes = (("dp", split.dp), ("ep", split.ep), ("pp", split.pp), ("tp", split.tp), ("cp", split.cp))
    return " × ".join(f"{axis} {size}" for axis, size in sizes if size > 1) or "one device"


def schedule_text(candidate: Candidate) -> str:
    """Schedule, micro-batches, and what is recomputed and sharded."""
    count, plan = candidate.micro_batches, candidate.plan
    size = f" of {plan.setup.micro_batch}" if isinstance(plan, TrainingPlan) else ""
    parts = [candidate.schedule, f"{count} micro-batch{'es' if count != 1 else ''}{size}"]
    if isinstance(plan, TrainingPlan):
        parts += [f"{plan.setup.virtual} stages a position"] if plan.setup.virtual > 1 else []
        parts += [] if candidate.recompute == "none" else [f"{candidate.recompute} recompute"]
        parts += [f"ZeRO-{candidate.zero}"] if candidate.zero else []
        parts += ["sequence split"] if plan.setup.sequence_split else []
    return ", ".join(parts)


def _chosen(choice: Choice) -> Text:
    chosen, objective = choice.chosen, choice.objective
    used = len({name for names in chosen.devices for name in names})
    lines = [
        Text.assemble(("Chosen: ", "bold"), (chosen.kind, "bold"), f", {used} device{'s' if used > 1 else ''}"),
        Text(f"  split             {split_text(chosen)}"),
        Text(f"  schedule          {schedule_text(chosen)}"),
    ]
    first = OBJECTIVE_KEY[objective]
    keys = [key for key in (first, *(key for key in _NAMES if key != first)) if key in chosen.predicted]
    for key in keys:
        lines.append(Text(f"  {_NAMES[key]:<18}{figure(key, chosen.predicted[key])}{_of(choice, key)}"))
        if key in _DIVIDED and "compute_s" in chosen.predicted:
            spent = ", ".join(f"{name} {_part(chosen, part)}" for name, part in _COLUMNS)
            lines.append(Text(f"  {'of which':<18}{spent}"))
    if choice.reason:
        lines.append(Text(f"  {'why':<18}{choice.reason}"))
    return Text("\n").join(lines)


def _of(choice: Choice, key: str) -> str:
    """Whose figure it is, where that is not plain."""
    if key == "peak_bytes":
        return " on the fullest device"
    if key != "comm_bytes":
        return ""
    plan = choice.chosen.plan
    if isinstance(plan, TrainingPlan):
        return " a step, by all devices"
    several = plan.slots * choice.chosen.split.dp > 1
    return f"{' for a token of every user' if several else ' a token'}, by all devices"


def _part(candidate: Candidate, key: str) -> str:
    """Seconds that are a part of the time of a step, or of a token."""
    predicted = candidate.predicted
    whole_s = next((predicted[name] for name in _DIVIDED if name in predicted), 0.0)
    value = predicted.get(key)
    if value is None:
        return "-"
    return "0" if abs(value) < _LITTLE * whole_s or not value else figure(key, value)


class _Row(NamedTuple):
    """A line of the table of stages."""

    stage: int
    layers: tuple[int, int]
    devices: tuple[str, ...]
    memory: DeviceMemory | None

    @property
    def alike(self) -> tuple[object, ...]:
        """What neighbours must share to stand in one line."""
        need = None if self.memory is None else (self.memory.need_bytes, self.memory.free_bytes)
        return self.layers[1] - self.layers[0], len(self.devices), need


def _stages(chosen: Candidate) -> Text:
    rows = _rows(chosen)
    groups = [[row] for row in rows]
    if len(rows) > _ROWS:
        groups = [list(group) for _, group in groupby(rows, key=lambda row: row.alike)]
    table = [("stage", "layers", "devices", "memory needed"), *(_cells(group) for group in groups)]
    widths = [max(len(cells[column]) for cells in table) for column in range(3)]
    lines = [
        "  ".join((*(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)), cells[3]))
        for cells in table
    ]
    return Text("\n").join([Text(lines[0], "dim"), *map(Text, lines[1:])])


def _rows(chosen: Candidate) -> list[_Row]:
    memory = {one.device: one for one in chosen.memory}
    rows = []
    for stage, (layers, names) in enumerate(zip(chosen.cut, chosen.devices, strict=True)):
        known = [memory[name] for name in names if name in memory]
        tightest = min(known, key=lambda one: one.free_bytes - one.need_bytes) if known else None
        rows.append(_Row(stage, layers, names, tightest))
    return rows


def _cells(group: Sequence[_Row]) -> tuple[str, str, str, str]:
    first, last = group[0], group[-1]
    stage = f"{first.stage}" if len(group) == 1 else f"{first.stage} to {last.stage}"
    count = first.layers[1] - first.layers[0]
    layers = (
        f"{first.layers[0]} to {last.layers[1] - 1}" if last.layers[1] - first.layers[0] > 1 else f"{first.layers[0]}"
    )
    layers += f" ({count})" if len(group) == 1 else f" ({count} each)"
    names = [name for row in group for name in row.devices]
    devices = ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]} ({len(set(names))})"
    return stage, layers, devices, "" if first.memory is None else _memory(first.memory)


def _memory(one: DeviceMemory) -> str:
    return f"{format_bytes(one.need_bytes)} of {format_bytes(one.free_bytes)}"


def _others(choice: Choice) -> Text:
    """The best of every other kind: what it would take, and under it how it splits and why it loses."""
    others = best_of_kinds(choice)
    if not others:
        return Text()
    key, title = OBJECTIVE_KEY[choice.objective], "The best of every other kind"
    wide = max(len(title), *(len(each.kind) for each in others))
    columns = ((_HEADS[choice.objective], key), *_COLUMNS, ("bubble", "bubble"))
    lines = [Text(f"{title:<{wide}}" + "".join(f"{name:>10}" for name, _ in columns), "bold")]
    for each in others:
        cells = "".join(f"{_short(each, name):>10}" for _, name in columns)
        lines.append(Text(f"{each.kind:<{wide}}{cells}"))
        loses = why_it_loses(each)
        lines.append(Text(f"    {split_text(each)}{': ' if loses else ''}{loses}", "dim"))
    return Text("\n").join(lines)


def best_of_kinds(choice: Choice) -> list[Candidate]:
    """The best of every kind but the chosen one."""
    best: dict[str, Candidate] = {}
    for candidate in choice.candidates:
        if candidate.kind != choice.chosen.kind:
            best.setdefault(candidate.kind, candidate)
    return list(best.values())


def why_it_loses(candidate: Candidate) -> str:
    """Why another was chosen, without the figures that stand beside it."""
    return _REPEATED.sub("", candidate.loses)


def _short(candidate: Candidate, key: str) -> str:
    if key in dict(_COLUMNS).values():
        return _part(candidate, key)
    value = candidate.predicted.get(key)
    return "-" if value is None else figure(key, value).replace(" tokens/s", "/s")


def _rejected(choice: Choice) -> Text:
    """The groups that say most, and how many ways remain."""
    if not choice.rejected:
        return Text()
    shown = telling_rejections(choice)
    lines = [Text(f"  {rejection(one)}") for one in shown]
    rest = [one for one in choice.rejected if one not in shown]
    if rest:
        ways = sum(one.count for one in rest)
        groups = f"{len(rest)} groups" if len(rest) > 1 else "1 group"
        lines.append(Text(f"  and {ways:,} ways in {groups} more (--json has all)"))
    return Text("\n").join([Text("Cannot be", "bold"), *lines])


def telling_rejections(choice: Choice) -> list[Rejected]:
    """Of every kind of which no way can be the nearest, then the nearest of all others.

    Kinds are told apart without the data axis, which needs no less memory.
    """
    able = {_axes({"pp": each.split.pp, "tp": each.split.tp, "ep": each.split.ep}) for each in choice.candidates}
    by_need = sorted(choice.rejected, key=lambda one: one.need / one.have if one.have else 0.0)
    kinds: dict[tuple[str, ...], Rejected] = {}
    for one in by_need:
        if _axes(one.split) not in able:
            kinds.setdefault(_axes(one.split), one)
    shown = sorted(kinds.values(), key=lambda one: len(_axes(one.split)))
    return shown + [one for one in by_need if one not in shown][: max(0, _GROUPS - len(shown))]


def _axes(split: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(axis for axis in ("pp", "tp", "ep") if split.get(axis, 1) > 1)


def rejection(one: Rejected) -> str:
    """``one device (1 way): not enough memory: …``."""
    return f"{rejected_ways(one)}: {why_it_cannot_be(one)}"


def rejected_ways(one: Rejected) -> str:
    """The axes of some ways that cannot be, and how many they are."""
    axes = " × ".join(f"{axis} {size}" for axis, size in one.split.items() if size > 1) or "one device"
    return f"{axes} ({one.count:,} way{'s' if one.count != 1 else ''})"


def why_it_cannot_be(one: Rejected) -> str:
    """The reason with its figures, each told once."""
    short = _SHORT.match(one.reason)
    if short:
        more = format_bytes(one.need - one.have)
        return f"{short[1]} would need at least {format_bytes(one.need)}, {more} more than it has"
    amounts = f"need {_amount(one, one.need)}, have {_amount(one, one.have)}"
    # a reason that holds the figures needs no second telling
    told = _amount(one, one.need) in one.reason and _amount(one, one.have) in one.reason
    return one.reason + ("" if told else f" ({amounts})")


def _amount(one: Rejected, value: float) -> str:
    return format_bytes(value) if "memor" in one.reason or max(one.need, one.have) >= 1e7 else f"{value:g}"


def _break_even(choice: Choice) -> Text:
    found = choice.break_even
    if not found:
        return Text()
    lines = [Text(f"  {one.text}") for one in telling_break_evens(choice)]
    if len(found) > _BREAK_EVENS:
        lines.append(Text(f"  and {len(found) - _BREAK_EVENS} more (--json has all)"))
    return Text("\n").join([Text("Where the answer changes", "bold"), *lines])


def telling_break_evens(choice: Choice) -> list[BreakEven]:
    """A few: of different kinds first."""
    found = choice.break_even
    kinds = [one.kind for one in found]
    ordered = sorted(range(len(found)), key=lambda index: kinds[:index].count(kinds[index]))
    return [found[index] for index in sorted(ordered[:_BREAK_EVENS])]


def _notes(choice: Choice) -> Text:
    """What is said of the figures, each once; and which of them were simulated."""
    notes = dict.fromkeys(each.note for each in (choice.chosen, *choice.candidates) if each.note)
    simulated = sum(each.simulated for each in choice.candidates)
    count = len(choice.candidates)
    closed = f"{simulated} of {count} plans were simulated, the others are closed forms"
    said = [*notes, closed if simulated < count else f"all {count} plans were simulated"]
    return Text("\n").join([Text("About the figures", "bold"), *(Text(f"  {note}") for note in said)])


def _folded(line: Text, width: int) -> Iterator[Text]:
    """The line, in several where it is too long: the further ones are indented as its text is."""
    if len(line) <= width:
        yield line
        return
    plain = line.plain
    indent = len(plain) - len(plain.lstrip())
    column = plain.find("  ", indent)
    hang = indent if column < 0 else len(plain) - len(plain[column:].lstrip())
    hang = hang if hang < width // 2 else indent
    style = line.spans[0].style if line.spans else line.style
    for number, piece in enumerate(wrapped(plain[hang:].split(), " ", width - hang)):
        yield Text((" " * hang if number else plain[:hang]) + piece.plain, style)


def list_page(names: Mapping[Sort, Mapping[str, str]]) -> str:
    """Every preset, a line each, sort by sort."""
    lines: list[str] = []
    for sort, presets in names.items():
        lines += ["", f"{sort}:"] if lines else [f"{sort}:"]
        wide = max(map(len, presets))
        lines += [f"  {name:<{wide}}  {words}" for name, words in presets.items()]
    return "\n".join(lines)
