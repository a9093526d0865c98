"""What bubbles explain of GPipe's and torchgpipe's speed-ups over partitions K and micro-batches M.

GPipe (Huang et al., arXiv 1811.06965, tables 2 and 3): throughput relative to K = 2, M = 1 (table 2) or K = 2, M = 32
(table 3). torchgpipe's documentation measured table 2 again on Tesla P40.

First with equal partitions and free links, where nothing is calibrated: right for a Transformer, whose layers are
alike, at M = 32. AmoebaNet's layers are not alike, so a second prediction gives each K a slowest partition, from the
row of M = 32; it explains the other M of torchgpipe. What is left in GPipe's own rows of M = 1 and 4 is that their
batch was made to fit the memory for each K and M, and that small micro-batches are slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plait.errors import SpecError
from plait.validator.cells import has, number, text, where, whole
from plait.validator.table import Compared, Record, Validation

COLUMNS = frozenset({"table", "model", "hardware", "K", "M", "normalised_throughput"})
TORCHGPIPE_COLUMNS = frozenset({"model", "partitions", "micro_batches", "value", "unit"})

MANY = 32
"""The M of which a slowest partition is taken."""


class Run(NamedTuple):
    """A model on K partitions with M micro-batches. `speed`: relative to another (K, M) of the series, its base."""

    model: str
    partitions: int
    micro_batches: int
    speed: float

    @property
    def name(self) -> str:
        """What the row is called in a report."""
        return f"{self.model}, K = {self.partitions}, M = {self.micro_batches}"


def batch_s(partitions: int, micro_batches: int, slowest: float | None = None) -> float:
    """Seconds of a batch in GPipe's schedule; on one device it takes one. `slowest`: the slowest partition's share.

    The first micro-batch goes through all partitions, each other one is `slowest` ÷ M later: with equal partitions
    (K + M - 1) ÷ (K M), as in section 2.3 of the paper.
    """
    share = 1 / partitions if slowest is None else slowest
    return (1 + (micro_batches - 1) * share) / micro_batches


def slowest_share(speed: float, micro_batches: int) -> float:
    """The share of the slowest partition that makes a batch take 1 ÷ `speed`: `batch_s` turned round."""
    return (micro_batches / speed - 1) / (micro_batches - 1)


def validate(name: str, records: Sequence[Record]) -> list[Validation]:
    """GPipe's tables 2 and 3: a validation for each kind of model and of M."""
    found: list[Validation] = []
    lines = [(_table(record), _run(record, "K", "M", "normalised_throughput")) for record in records]
    families = dict.fromkeys(("Transformer", *(run.model.partition("-")[0] for _, run in lines)))
    for table, base in _BASES.items():
        for family in families:
            runs = [run for of, run in lines if of == table and run.model.partition("-")[0] == family]
            where_from = f"{family}, {table.replace('table', 'table ')}"
            found += _alone(name, where_from, runs, base)
            if base == (2, 1) and family != "Transformer":
                found += _with_slowest(name, where_from, runs)
    return found


_BASES = {"table2": (2, 1), "table3": (2, MANY)}
"""By table the partitions and micro-batches that its throughputs are relative to."""


def _table(record: Record) -> str:
    found = text(record, "table").lower().replace(" ", "")
    if found not in _BASES:
        raise SpecError(f"{where(record)}: table is {record['table']!r}, but must be {' or '.join(_BASES)}")
    return found


def _run(record: Record, partitions: str, micro_batches: str, speed: str) -> Run:
    parts, count = whole(record, partitions, most=10**4), whole(record, micro_batches, most=10**6)
    return Run(text(record, "model"), parts, count, number(record, speed))


def validate_torchgpipe(name: str, records: Sequence[Record]) -> list[Validation]:
    """The rows that say how many micro-batches there were, relative to the same model's K = 2, M = 1."""
    told = [_run(record, "partitions", "micro_batches", "value") for record in records if has(record, "micro_batches")]
    bases = {run.model: run.speed for run in told if (run.partitions, run.micro_batches) == (2, 1)}
    runs = [run._replace(speed=run.speed / bases[run.model]) for run in told if run.model in bases]
    silent = sum(not has(record, "micro_batches") for record in records)
    note = f"; {silent} rows do not say how many micro-batches they had: left out" if silent else ""
    if len(told) > len(runs):
        note += f"; {len(told) - len(runs)} rows are of models without K = 2, M = 1: left out"
    return [*_alone(name, "speed", runs, (2, 1), note), *_with_slowest(name, "speed", runs, note)]


def _alone(name: str, where: str, runs: Sequence[Run], base: tuple[int, int], note: str = "") -> list[Validation]:
    """Equal partitions; M = 32 apart from smaller M."""
    found = []
    for many in (True, False):
        rows = tuple(
            Compared(run.name, run.speed, batch_s(*base) / batch_s(run.partitions, run.micro_batches), _unit(base))
            for run in runs
            if (run.micro_batches == MANY) is many and (run.partitions, run.micro_batches) != base
        )
        if rows:
            quantity = f"{where}, {f'M = {MANY}' if many else 'smaller M'}, bubbles alone"
            found.append(Validation(name, quantity, rows, "nothing: equal partitions, free links", note=note[2:]))
    return found


def _with_slowest(name: str, where: str, runs: Sequence[Run], note: str = "") -> list[Validation]:
    """A slowest partition for every model and K, from its row of M = 32."""
    for run in runs:
        if run.micro_batches == MANY and run.speed >= MANY:
            raise SpecError(f"table {name}: {run.name} has {run.speed:g} {_unit((2, 1))}, but less than {MANY} can be")
    shares = {(run.model, run.partitions): slowest_share(run.speed, MANY) for run in runs if run.micro_batches == MANY}
    rows = tuple(
        Compared(
            run.name,
            run.speed,
            1 / batch_s(run.partitions, run.micro_batches, shares[run.model, run.partitions]),
            _unit((2, 1)),
            run.micro_batches == MANY,
        )
        for run in runs
        if (run.model, run.partitions) in shares and (run.partitions, run.micro_batches) != (2, 1)
    )
    told = ", ".join(f"{100 * share:.0f} % of the work on K = {parts}" for (_, parts), share in shares.items())
    words = f"the slowest partition has {told}{note}"
    quantity = f"{where}, smaller M, with a slowest partition"
    return [Validation(name, quantity, rows, f"the rows of M = {MANY}", note=words)] if rows else []


def _unit(base: tuple[int, int]) -> str:
    return f"times K = {base[0]}, M = {base[1]}"
