"""Cross-entropy over a sharded vocabulary: known values, any shards, extremes, and what the ranks tell each other."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from plait.comm.contract import Endpoint
from plait.comm.tensor_group import EndpointGroup
from plait.nn.group import Alone
from plait.nn.training.loss import IGNORED, Losses, losses
from plait.spec.shards import Range
from tests.comm.ranks import ThreadRanks


def shared(endpoint: Endpoint, logits: torch.Tensor, targets: torch.Tensor, sizes: list[int]) -> Losses:
    rows = [Range(*pair) for pair in pairwise([0, *accumulate(sizes)])][endpoint.rank]
    group = EndpointGroup(endpoint, tuple(range(endpoint.size)))
    return losses(logits[:, rows.first : rows.end].clone(), targets, rows, group)


def test_known_values() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0], [1.0, 2.0]])
    found = losses(logits, torch.tensor([1, 0, IGNORED]), Range(0, 2), Alone())
    assert float(found.total) == pytest.approx(math.log(4 / 3) + math.log(2))
    assert found.gradient.tolist() == [pytest.approx([0.25, -0.25]), pytest.approx([-0.5, 0.5]), [0, 0]]
    assert found.gradient.data_ptr() == logits.data_ptr()  # no second memory of that size


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 0),
    scale=st.sampled_from((1.0, 30.0, 1000.0)),
    ignored=st.sampled_from((0.0, 0.4, 1.0)),
    seed=st.integers(0, 99),
)
def test_any_shards_equal_torch(sizes: list[int], scale: float, ignored: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(7, sum(sizes), dtype=torch.float64, generator=generator) * scale
    targets = torch.randint(0, sum(sizes), (7,), generator=generator)
    targets[torch.rand(7, generator=generator) < ignored] = IGNORED
    wanted = logits.clone().requires_grad_()
    expected = cross_entropy(wanted, targets, ignore_index=IGNORED, reduction="sum")
    expected.backward()
    ranks = ThreadRanks().run(shared, len(sizes), logits=logits, targets=targets, sizes=sizes)
    assert len({float(one.total) for one in ranks}) == 1
    torch.testing.assert_close(ranks[0].total, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([one.gradient for one in ranks], dim=1), wanted.grad, rtol=1e-12, atol=1e-12)


def test_three_numbers_a_token_are_exchanged() -> None:
    def program(endpoint: Endpoint) -> int:
        shared(endpoint, torch.randn(7, 64), torch.zeros(7, dtype=torch.int64), [32, 32])
        return endpoint.traffic(1 - endpoint.rank).payload_bytes

    assert ThreadRanks().run(program, 2) == [7 * 3 * 4] * 2
