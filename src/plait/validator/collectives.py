"""Measured all-reduces against latency and bandwidth: how well do two figures, or a curve of a few, say all sizes?"""

from __future__ import annotations

from collections.abc import Sequence

from plait.costs.collectives import ring_channel, ring_s
from plait.units import format_bytes
from plait.validator.cells import number, text, whole
from plait.validator.table import Compared, Record, Validation

COLUMNS = frozenset({"gpu", "n_gpus", "size_bytes", "out_of_place_us"})

_BETWEEN = tuple(mebi * 2**20 for mebi in (1, 4, 16))
"""Bytes: protocols change among these sizes, so that is where the curve has its points, beside both ends."""

Points = list[tuple[float, float]]
"""(Bytes of the vector, seconds), ascending."""


def validate(name: str, records: Sequence[Record]) -> list[Validation]:
    """One fit for each machine and number of GPUs, on rows that `calibrated_on` names; judged on the others."""
    series: dict[tuple[str, int], Points] = {}
    for record in records:
        points = series.setdefault((text(record, "gpu"), whole(record, "n_gpus", least=2, most=10**6)), [])
        points.append((number(record, "size_bytes"), number(record, "out_of_place_us") * 1e-6))
    return [
        _validation(name, series, "all-reduce by one latency and bandwidth", few=True),
        _validation(name, series, "all-reduce by bandwidth over size", few=False),
    ]


def _validation(name: str, series: dict[tuple[str, int], Points], quantity: str, *, few: bool) -> Validation:
    rows: list[Compared] = []
    for (gpu, ranks), points in series.items():
        rows += _compared(f"{gpu} × {ranks}", ranks, sorted(points), few=few)
    which = "the smallest and the largest" if few else "the smallest, 1, 4 and 16 MiB, and the largest"
    return Validation(
        name, quantity, tuple(rows), f"of each machine and number of GPUs the rows of these sizes: {which}", note=_NOTE
    )


_NOTE = "a ring's messages; the fit holds for the GPUs and the library version that were measured"


def _compared(name: str, ranks: int, points: Points, *, few: bool) -> list[Compared]:
    chosen = chosen_points(points, few=few)
    channel = ring_channel(chosen, ranks)
    return [
        Compared(
            f"{name} {format_bytes(size)}",
            seconds * 1e6,
            ring_s(size, ranks, channel, rounds=2) * 1e6,
            "µs",
            calibrated=(size, seconds) in chosen,
            group=name,
        )
        for size, seconds in points
    ]


def chosen_points(points: Points, *, few: bool) -> Points:
    """The rows that a series is fitted on: the ends, and unless `few` those nearest to 1, 4 and 16 MiB."""
    wanted = [points[0][0], points[-1][0], *(() if few else _BETWEEN)]
    near = {min(points, key=lambda point, size=size: abs(point[0] - size)) for size in wanted}  # type: ignore[misc]
    return sorted(near)
