"""The page on JSON: the keys that every verb's --json writes, read off what it really wrote.

Verbs that only calculate are run here. What those write that start ranks or measure is kept by `figures.py`, which runs
them anyway, in docs/figures/json_keys.json.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from typer.testing import CliRunner
from writing import code, table

from plait.cli.main import app
from plait.reports.path import Path as CriticalPath
from plait.reports.path import parts_json

KEPT = Path(__file__).resolve().parents[1] / "figures" / "json_keys.json"

CALCULATED = (
    "plan llama3-8b --cluster home --json -o PLAN",
    "simulate PLAN --json",
    "plan gpt-1.7b --cluster a100 --gpus 8 --task train --batch 16 --json -o PLAN",
    "simulate PLAN --json",
    "validate distributed_llama_speed --json",
)
"""Run for this page, in this order; PLAN is one file."""

SAME = 4
"""Objects of so many equal keys are told once."""

Keys = list[tuple[str, str]]


def json_page() -> str:
    """The whole page."""
    words = [
        "# JSON",
        "With `--json` a verb writes one JSON object to stdout (`plait train`: one a step, a line each) and nothing "
        "else there. Units are SI: seconds, bytes, FLOP. A figure that is not known is null. What the common keys "
        "mean is in [the words](../vocabulary.md#figures).",
        "Below are the keys of what these commands wrote; `[]` is each of a list, `*` any name. A key may be absent "
        "where it has no meaning, as those of replicas on one device.",
        "What a run did decides on no key: what did not happen is 0. So `critical_path.*.seconds` of `plait report` "
        f"has, in this order, {_parts('generate')} of generation, and {_parts('train')} of training, which add up to "
        "the makespan.",
    ]
    for command, keys in (*_calculated(), *_kept()):
        words += [f"## `plait {command}`", table(("key", "value"), _rows(keys))]
    return "\n\n".join(words)


def _parts(task: Literal["generate", "train"]) -> str:
    """What the critical paths of a task are made of."""
    *parts, last = map(code, parts_json(CriticalPath("", 0, (), (), ()), task))
    return f"{', '.join(parts)} and {last}"


def _rows(keys: Keys) -> Iterator[tuple[str, str]]:
    """A row a key; of an object with the same keys as one before only its name, and whose keys it has."""
    seen: dict[tuple[str, ...], str] = {}
    skipped = ""
    for key, kind in keys:
        if skipped and key.startswith(skipped):
            continue
        skipped = ""
        below = tuple(other[len(key) :] for other, _ in keys if other.startswith(f"{key}."))
        if len(below) >= SAME and below in seen:
            yield code(key), f"{kind}, with the keys of {code(seen[below])}"
            skipped = f"{key}."
            continue
        seen.setdefault(below, key)
        yield code(key), kind


def _calculated() -> Iterator[tuple[str, Keys]]:
    with tempfile.TemporaryDirectory() as folder:
        for command in CALCULATED:
            arguments = shlex.split(command.replace("PLAN", str(Path(folder, "plan.toml"))))
            ran = CliRunner().invoke(app, arguments)
            if ran.exit_code:
                raise RuntimeError(f"plait {command} ended with {ran.exit_code}: {ran.stderr}")
            yield command, keys_of(json.loads(ran.stdout))


def _kept() -> Iterator[tuple[str, Keys]]:
    if KEPT.is_file():
        yield from ((command, [tuple(pair) for pair in keys]) for command, keys in json.loads(KEPT.read_text()).items())


def keys_of(value: Any) -> Keys:
    """Every key in `value`, with where it stands and what kind of value it has."""
    found: dict[str, set[str]] = {}
    _walk(value, "", found)
    return [(key, " or ".join(sorted(kinds, key=_last))) for key, kinds in found.items()]


def _last(kind: str) -> tuple[bool, str]:
    return kind == "null", kind


def _walk(value: Any, path: str, found: dict[str, set[str]]) -> None:
    if isinstance(value, Mapping):
        if path:
            found.setdefault(path, set()).add("object")
        for key, inner in value.items():
            name = "*" if _is_free(key) else key
            _walk(inner, f"{path}.{name}" if path else name, found)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        found.setdefault(path, set()).add("list")
        for inner in value:
            if isinstance(inner, Mapping | list):
                _walk(inner, f"{path}[]", found)
    else:
        found.setdefault(path, set()).add(_kind(value))


def _is_free(key: str) -> bool:
    """A name out of the data (a number, a device), not a key."""
    return not key.replace("_", "").isalpha() or key != key.lower()


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    return "number" if isinstance(value, int | float) else "text"
