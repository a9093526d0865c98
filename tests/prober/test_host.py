"""What names this host, and what others do on it."""

from __future__ import annotations

import os
import time

import pytest

from plait.prober import host
from plait.prober.host import Others, cpu_model, on_all_cores, rank_environment, usable_cores


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


def test_a_rank_on_all_cores_has_a_thread_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host, "core_numbers", lambda: (2, 5))
    assert rank_environment(2)["GOMP_CPU_AFFINITY"] == "2 5"
    assert rank_environment(2, 6)["GOMP_CPU_AFFINITY"] == "2 5"
    assert "GOMP_CPU_AFFINITY" not in rank_environment(1)
    assert "GOMP_CPU_AFFINITY" not in rank_environment(3)


def test_a_tensor_group_on_all_cores_has_a_core_for_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host, "core_numbers", lambda: (2, 5, 6, 7))
    assert [rank_environment(1, 4, index, 4)["GOMP_CPU_AFFINITY"] for index in range(4)] == ["2", "5", "6", "7"]
    assert [rank_environment(2, 4, index, 2)["GOMP_CPU_AFFINITY"] for index in range(2)] == ["2 5", "6 7"]
    assert "GOMP_CPU_AFFINITY" not in rank_environment(1, 2, 0, 2)
    assert "GOMP_CPU_AFFINITY" not in rank_environment(1, 8, 0, 8)


def test_one_core_binds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_CPU_AFFINITY", raising=False)
    monkeypatch.setattr(host, "core_numbers", lambda: (0,))
    assert "GOMP_CPU_AFFINITY" not in rank_environment(1)


def test_a_persons_own_binding_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_CPU_AFFINITY", raising=False)
    monkeypatch.setattr(host, "core_numbers", lambda: (0, 1))
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    assert "GOMP_CPU_AFFINITY" not in rank_environment(2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not bind threads")
def test_a_bound_rank_loads_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    every = os.sched_getaffinity(0)
    first = {min(every)}
    monkeypatch.setenv("GOMP_CPU_AFFINITY", " ".join(map(str, sorted(every))))
    os.sched_setaffinity(0, first)
    try:
        with on_all_cores():
            assert os.sched_getaffinity(0) == every
        assert os.sched_getaffinity(0) == first
        monkeypatch.setenv("GOMP_CPU_AFFINITY", "0-3")  # a person's own way of writing it is left alone
        with on_all_cores():
            assert os.sched_getaffinity(0) == first
    finally:
        os.sched_setaffinity(0, every)
