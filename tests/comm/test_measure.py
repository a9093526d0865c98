from __future__ import annotations

import pytest
import torch

from plait.comm.contract import Endpoint, Group
from plait.comm.measure import fit, measure_link
from tests.comm.ranks import Ranks


def measured(endpoint: Endpoint) -> list[float]:
    torch.set_num_threads(1)
    endpoint.barrier(Group((0, 1)))
    cost = measure_link(endpoint, 1 - endpoint.rank)
    return [cost.latency_s, cost.bandwidth_bytes_per_s]


def test_both_ranks_measure_the_same_link(ranks: Ranks) -> None:
    first, second = ranks.run(measured, 2)
    assert first == second
    assert 1e-7 < first[0] < 1
    assert 1e5 < first[1] < float("inf")  # on a busy machine the line can be nearly flat


@pytest.mark.parametrize(("latency_s", "bandwidth"), [(5e-6, 5e9), (1e-3, 1e8)])
def test_a_line_is_found_again(latency_s: float, bandwidth: float) -> None:
    cost = fit([(size, latency_s + size / bandwidth) for size in (1024, 16384, 262144, 2097152)])
    assert cost.latency_s == pytest.approx(latency_s)
    assert cost.bandwidth_bytes_per_s == pytest.approx(bandwidth)


def test_noise_never_gives_a_negative_cost() -> None:
    assert fit([(1000, 1e-5), (2000, 9e-6)]).bandwidth_bytes_per_s == pytest.approx(2000 / 9e-6)
    assert fit([(1000, 1e-6), (2000, 5e-6), (3000, 9e-6)]).latency_s == 1e-6
