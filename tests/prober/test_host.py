"""What names this host, and what others do on it."""

from __future__ import annotations

import os
import time

import pytest

from plait.prober.host import Others, cpu_model, rank_environment, usable_cores


def test_names() -> None:
    assert cpu_model()
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_our_own_work_is_not_others() -> None:
    with Others() as others:
        end_s = time.process_time() + 0.3
        while time.process_time() < end_s:
            pass
    assert 0.0 <= others.share <= 1.0


def test_a_persons_own_openmp_setting_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert rank_environment(3)["OMP_NUM_THREADS"] == "3"
    assert "GOMP_SPINCOUNT" in rank_environment(3)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "GOMP_SPINCOUNT" not in rank_environment(3)
