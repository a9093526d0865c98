"""The link between two processes, measured and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.costs.protocol import LinkCost
from plait.prober import kept, links


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    return tmp_path


def test_measured() -> None:
    cost = links.measure_shm_link()
    assert 1e-7 < cost.latency_s < 1
    assert 1e5 < cost.bandwidth_bytes_per_s < 1e12
    assert 0 <= cost.wake_s < 1
    assert links.measure_shm_link() == cost  # kept


def test_kept_until_fresh_or_corrupt(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = iter([(1.0, 10.0, 0.0), (2.0, 20.0, 0.0), (3.0, 30.0, 0.5)])
    monkeypatch.setattr(links, "_measure", lambda threads, ranks, dtype, beside: next(costs))
    assert links.measure_shm_link().latency_s == 1.0
    assert links.measure_shm_link().latency_s == 1.0
    assert links.measure_shm_link(fresh=True).latency_s == 2.0
    (file,) = cache.rglob("*.json")
    file.write_bytes(b'{"host": 1}')
    assert links.measure_shm_link() == LinkCost(3.0, 30.0, 0.5)
    assert len(list(cache.rglob("*.json"))) == 1


def test_anything_that_matters_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(*given: object) -> tuple[float, float, float]:
        asked.append(given)
        return 1.0, 1.0, 0.0

    monkeypatch.setattr(links, "_measure", measure)
    for ways in ({}, {"threads": 2}, {"ranks": 3}, {"dtype": "bfloat16"}, {"beside": 2}, {}):
        links.measure_shm_link(**ways)  # type: ignore[arg-type]
    assert asked == [
        (1, 2, "float32", 1),
        (2, 2, "float32", 1),
        (1, 3, "float32", 1),
        (1, 2, "bfloat16", 1),
        (1, 2, "float32", 2),
    ]
