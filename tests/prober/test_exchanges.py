"""What exchanges take behind computations: from known blocks, among threads, and among processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from plait.comm.threads import thread_mesh
from plait.costs.curves import Curve
from plait.costs.exchange_times import ExchangeTimes
from plait.plans.exchanges import Op
from plait.prober import exchanges, kept
from plait.prober.exchanges import measure_exchanges
from plait.prober.exchanging import Block, Layers, exchange_times
from plait.prober.host import usable_cores

SOME = ExchangeTimes(*(Curve((1.0, 2.0), (seconds, 2 * seconds)) for seconds in (1.0, 2.0, 3.0)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    return tmp_path


def test_the_middle_of_blocks_that_take_turns() -> None:
    """The first block of all warms up; one in the middle was held up."""
    asked: list[tuple[int, Op]] = []

    def block_of(rows: int) -> Block:
        held_up = {op: iter([50.0, 1.0, 2.0, 90.0, 2.5, 1.5]) for op in Op}
        each = {Op.ALL_REDUCE: 1.0, Op.REDUCE_SCATTER: 2.0, Op.ALL_GATHER: 3.0}

        def block(op: Op) -> float:
            asked.append((rows, op))
            return next(held_up[op]) * rows * each[op]

        return block

    times = exchange_times(block_of, 100, (1, 4))
    assert times.all_reduce == Curve((100.0, 400.0), (2.0, 8.0))
    assert times.reduce_scatter == Curve((100.0, 400.0), (4.0, 16.0))
    assert times.all_gather == Curve((100.0, 400.0), (6.0, 24.0))
    assert asked == [(rows, op) for rows in (1, 4) for _ in range(6) for op in Op]


@pytest.mark.parametrize("op", Op)
def test_ranks_compute_and_exchange_and_agree_on_the_seconds(op: Op) -> None:
    layers = [Layers(endpoint, torch.float32) for endpoint in thread_mesh(3, 2)]
    with ThreadPoolExecutor(3) as pool:
        taken = [one.result(60) for one in [pool.submit(layer.block_of(4), op) for layer in layers]]
    assert len(set(taken)) == 1
    assert 0 < taken[0] < 10


def test_between_processes() -> None:
    times = exchanges._measure(1, 2, "bfloat16", 2, rows=(1, 4))
    for curve in (times.all_reduce, times.reduce_scatter, times.all_gather):
        assert curve.at == (1152.0, 4608.0)
        assert all(0 <= value < 10 for value in curve.values)


def test_kept_for_what_matters(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def measure(*given: object) -> ExchangeTimes:
        asked.append(given)
        return SOME

    monkeypatch.setattr(exchanges, "_measure", measure)
    cores = usable_cores()
    ways: list[dict[str, object]] = [{}, {"threads": 2}, {"tp": 3}, {"dtype": "float32"}, {"all_threads": 100 * cores}]
    for way in (*ways, {}, {"all_threads": 200 * cores}):  # more than the cores is more than the cores
        given = {"threads": 1, "tp": 2, "dtype": "bfloat16"} | way
        assert measure_exchanges(**given) == SOME  # type: ignore[arg-type]
    assert [one[:3] for one in asked] == [
        (1, 2, "bfloat16"),
        (2, 2, "bfloat16"),
        (1, 3, "bfloat16"),
        (1, 2, "float32"),
        (1, 2, "bfloat16"),
    ]
    measure_exchanges(1, 2, "bfloat16", fresh=True)
    assert len(asked) == 6
    for file in cache.rglob("*.json"):
        file.write_text('{"host": 1}')
    measure_exchanges(1, 2, "bfloat16")
    assert len(asked) == 7
