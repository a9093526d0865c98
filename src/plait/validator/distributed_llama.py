"""distributed-llama on Raspberry Pi 5: time a token and bytes a token, one profile a software version.

Each profile is fitted on the rows named in `CALIBRATIONS`, and only on them. Its figures follow from the rows by least
squares each time: none is written down here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf
from statistics import fmean
from typing import NamedTuple

import numpy as np

from plait.errors import SpecError
from plait.spec.model import ModelSpec
from plait.validator.cells import has, number, reading, text, where, whole
from plait.validator.distributed_llama_model import (
    BUFFER_BYTES,
    GIGABIT,
    PI_5_FLOPS,
    Profile,
    exchanged,
    kilobytes,
    known_model,
    predict,
    read_bytes,
)
from plait.validator.table import Compared, Record, Validation

SPEED, TRANSFER = "distributed_llama_speed", "distributed_llama_transfer"

COLUMNS: Mapping[str, tuple[str, ...]] = {
    SPEED: ("version", "model", "nodes", "total_ms", "compute_ms"),
    TRANSFER: ("version", "model", "sync_buffer", "nodes", "total_kB"),
}
"""The columns that each table needs."""


_COUNTED = "no constant: counted from the models' sizes (what 0.1.x exchanges was found from its Llama 2 7B rows)"


class Calibration(NamedTuple):
    """The rows (model, machines) that a version is fitted on. `latency_of`: the version whose latency it has."""

    rows: tuple[tuple[str, int], ...]
    latency_of: str | None = None


CALIBRATIONS: Mapping[str, Calibration] = {
    "0.3.1": Calibration((("Llama 2 7B", 1), ("Llama 2 7B", 2), ("Llama 2 7B", 4), ("Llama 3 8B", 1))),
    "PR64": Calibration((("Llama 3 8B", 2), ("Llama 3 8B", 4))),
    "0.7.0": Calibration((("Llama 3 8B", 2), ("Llama 3 8B", 4))),
    # one row does not say what of the wait is latency: it is that of 0.7.0, on the same machines on the same day
    "0.6.0": Calibration((("Llama 3 8B", 2),), "0.7.0"),
}
"""A version that is not named is fitted on its first row, or on two where it has three or more: those of the model with
the most rows, on the fewest machines."""


class Row(NamedTuple):
    """A line of the table, in seconds. `version` names device and link too where they are not the Pi 5 and 1 Gb/s."""

    version: str
    model: str
    buffer: str
    nodes: int
    total_s: float
    compute_s: float
    network_s: float
    flops: float = PI_5_FLOPS
    link: float = GIGABIT

    @property
    def name(self) -> str:
        """What the line is called in a report."""
        return f"{self.version}, {self.model}, {self.nodes} machine{'s' if self.nodes > 1 else ''}"


def read_row(record: Record) -> Row:
    """A line of the speed table. Errors: SpecError."""
    weights = record["weights"].strip().upper() if has(record, "weights") else WEIGHTS
    if weights != WEIGHTS:
        raise SpecError(f"{where(record)}: weights is {record['weights']!r}, but only {WEIGHTS} is predicted")
    device = record["device"].strip() if has(record, "device") else PI_5
    link, version = _link(record), text(record, "version")
    known = device.lower().startswith(PI_5.lower())
    total_s, compute_s = number(record, "total_ms") / 1e3, number(record, "compute_ms") / 1e3
    told = has(record, "network_ms")
    return Row(
        version + ("" if known else f" on {device}") + ("" if link == GIGABIT else f" over {8 * link / 1e9:g} Gb/s"),
        _model(record).name,
        _buffer(record),
        _nodes(record),
        total_s,
        compute_s,
        number(record, "network_ms", least=0) / 1e3 if told else max(0.0, total_s - compute_s),
        PI_5_FLOPS if known else inf,
        link,
    )


PI_5, WEIGHTS = "Raspberry Pi 5", "Q40"


def _model(record: Record) -> ModelSpec:
    """What stands in brackets after a model's name is a remark."""
    name = text(record, "model")
    with reading(record):
        return known_model(name.split(" (")[0])


def _buffer(record: Record) -> str:
    return text(record, "sync_buffer", BUFFER_BYTES) if has(record, "sync_buffer") else "Q80"


def _nodes(record: Record) -> int:
    return whole(record, "nodes", most=1024)


def _link(record: Record) -> float:
    """Bytes/s of what the line calls its link: ``GbE`` is 1 Gb/s, as is no word, ``2.5 GbE`` 2.5. Errors: SpecError."""
    words = record.get("link", "").lower()
    found = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)\s*(?:gbe|gb/s|gbit|gbps)", words)
    if found and float(found[1]) > 0:
        return float(found[1]) * GIGABIT
    if words and not re.search("gbe|gigabit|switch", words):
        raise SpecError(f"{where(record)}: link is {record['link']!r}, but must say how fast it is: GbE, 2.5 GbE, …")
    return GIGABIT


def profiles(rows: Sequence[Row]) -> dict[str, Profile]:
    """Each version's, fitted on the rows that `is_calibrated` names."""
    found: dict[str, Profile] = {}
    versions = dict.fromkeys(row.version for row in rows)
    for version in sorted(versions, key=lambda name: CALIBRATIONS.get(name, Calibration(())).latency_of is not None):
        found[version] = _fitted(version, [row for row in rows if is_calibrated(row, rows)], found)
    return found


def is_calibrated(row: Row, rows: Sequence[Row]) -> bool:
    """True where the row's version is fitted on it."""
    if row.version in CALIBRATIONS:
        return (row.model, row.nodes) in CALIBRATIONS[row.version].rows
    own = [one for one in rows if one.version == row.version]
    if len(own) < 3:
        return row == own[0]
    counts = Counter(one.model for one in own)
    most = [one for one in own if one.model == max(counts, key=lambda model: counts[model])]
    return row in sorted(most, key=lambda one: one.nodes)[:2]


def _fitted(version: str, rows: Sequence[Row], others: Mapping[str, Profile]) -> Profile:
    own = [row for row in rows if row.version == version]
    source = CALIBRATIONS.get(version, Calibration(())).latency_of
    words = ", ".join(f"{row.model} on {row.nodes}" for row in own)
    profile = replace(_fit_compute(own), calibrated_on=words, flops=own[0].flops, link=own[0].link)
    if source is None or source not in others:
        return _fit_network(profile, own, fit_latency=True)
    words = f"{words}, with the latency of {source}"
    profile = replace(profile, latency_s=others[source].latency_s, calibrated_on=words)
    return _fit_network(profile, own, fit_latency=False)


def _fit_compute(rows: Sequence[Row]) -> Profile:
    """Bandwidth from any row; with two, what the root does alone; with three, also its head.

    Squares of errors relative to the whole token.
    """
    table = []
    for row in rows:
        spec = known_model(row.model)
        layers, head = read_bytes(spec, row.nodes)
        values = spec.layers * spec.hidden
        columns = (layers, head, values) if len(rows) > 2 else (layers + head, 0.0, values if len(rows) > 1 else 0.0)
        table.append([value / row.total_s for value in columns])
    layer, head, alone = nonnegative_fit(table, [row.compute_s / row.total_s for row in rows])
    if layer <= 0:
        raise SpecError(f"{rows[0].version}: no memory bandwidth fits its rows: {', '.join(row.name for row in rows)}")
    return Profile(1 / layer, head / layer if len(rows) > 2 else 1.0, alone)


def _fit_network(profile: Profile, rows: Sequence[Row], *, fit_latency: bool) -> Profile:
    """The workers' lag and the latency from what of the wait is not bytes; the lag alone where the latency is known."""
    table, target = [], []
    for row in rows:
        if row.nodes > 1:
            spec = known_model(row.model)
            known = predict(replace(profile, lag=0.0), row.version, spec, row.nodes, row.buffer).network_s
            share_s = read_bytes(spec, row.nodes)[0] / profile.bandwidth
            messages = exchanged(row.version, spec, row.nodes).waits * spec.layers * (row.nodes - 1)
            table.append([share_s / row.total_s, messages / row.total_s if fit_latency else 0.0])
            target.append((row.network_s - known) / row.total_s)
    if not table:
        return profile
    lag, latency_s = nonnegative_fit(table, target)
    return replace(profile, lag=lag, latency_s=latency_s if fit_latency else profile.latency_s)


def nonnegative_fit(table: Sequence[Sequence[float]], target: Sequence[float]) -> tuple[float, ...]:
    """The factors of the columns, none negative, with the least squared error: the best of all subsets of columns."""
    matrix, wanted = np.array(table), np.array(target)
    best: tuple[float, int, tuple[float, ...]] | None = None
    for chosen in _subsets([i for i in range(matrix.shape[1]) if matrix[:, i].any()]):
        scale = np.abs(matrix[:, chosen]).max(axis=0)
        found, _, rank, _ = np.linalg.lstsq(matrix[:, chosen] / scale, wanted, rcond=None)
        if rank < len(chosen) or (found < 0).any():
            continue
        error = float(np.square(matrix[:, chosen] / scale @ found - wanted).sum())
        factors = dict(zip(chosen, (found / scale).tolist(), strict=True))
        if best is None or error < best[0] - 1e-15:
            best = error, len(chosen), tuple(factors.get(i, 0.0) for i in range(matrix.shape[1]))
    return best[2] if best else (0.0,) * matrix.shape[1]


def _subsets(columns: Sequence[int]) -> Iterator[list[int]]:
    for count in range(1, len(columns) + 1):
        yield from map(list, combinations(columns, count))


def validate(name: str, records: Sequence[Record]) -> tuple[Validation, ...]:
    """Of either table. Errors: SpecError."""
    return (_validate_speed if name == SPEED else _validate_transfer)(name, records)


def _validate_speed(name: str, records: Sequence[Record]) -> tuple[Validation, ...]:
    rows = [read_row(record) for record in records]
    found = profiles(rows)
    compared, predicted_s = [], {}
    for row in rows:
        prediction = predict(found[row.version], row.version, known_model(row.model), row.nodes, row.buffer)
        predicted_s[row] = sum(prediction)
        note = f"computing {prediction.compute_s * 1e3:.0f} ms, waiting {prediction.network_s * 1e3:.0f} ms"
        calibrated = is_calibrated(row, rows)
        compared.append(Compared(row.name, row.total_s, sum(prediction), "s", calibrated, note))
    words = "; ".join(f"{version}: {profile.calibrated_on}" for version, profile in found.items())
    series = _series(rows)
    regrets = [_regret_pct(each, predicted_s) for each in series]
    regret = fmean(regrets) if regrets else None
    return (Validation(name, "time a token", tuple(compared), words, regret, note=_note(series, regrets, rows)),)


def _series(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one version and model on several numbers of machines."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.version, row.model), []).append(row)
    return [each for each in found.values() if len(each) > 1]


def _regret_pct(series: Sequence[Row], predicted_s: Mapping[Row, float]) -> float:
    """By how much the number of machines that the model chooses is slower than the best."""
    chosen = min(series, key=lambda row: predicted_s[row])
    return 100 * (chosen.total_s / min(row.total_s for row in series) - 1)


def _note(series: Sequence[Sequence[Row]], regrets: Sequence[float], rows: Sequence[Row]) -> str:
    if not series:
        return ""
    right = sum(regret == 0 for regret in regrets)
    open_ones = sum(not all(is_calibrated(row, rows) for row in each) for each in series)
    words = f"best number of machines right in {right} of {len(series)} series; {open_ones} hold rows not fitted on"
    most = all(min(each, key=lambda row: row.total_s) == max(each, key=lambda row: row.nodes) for each in series)
    return f"{words}; in all of them the most machines are the fastest" if most else words


def _validate_transfer(name: str, records: Sequence[Record]) -> tuple[Validation, ...]:
    quantities: dict[str, list[Compared]] = {"kB a token": [], "kB sent by the root": [], "kB received by the root": []}
    for record in records:
        version, nodes, buffer = text(record, "version"), _nodes(record), text(record, "sync_buffer", BUFFER_BYTES)
        sent, received = kilobytes(version, _model(record), nodes, buffer)
        row = f"{version}, {record['model']}, {buffer}, {nodes} machines"
        columns = ("total_kB", sent + received), ("sent_kB", sent), ("received_kB", received)
        for rows, (column, predicted) in zip(quantities.values(), columns, strict=True):
            if has(record, column):
                rows.append(Compared(row, number(record, column), predicted, "kB"))
    return tuple(Validation(name, quantity, tuple(rows), _COUNTED) for quantity, rows in quantities.items() if rows)
