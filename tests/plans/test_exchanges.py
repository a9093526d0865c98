"""The bytes of a group's exchanges by the rule: known values, and what must hold for any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.plans.exchanges import AT_ONCE_BYTES, BLOCK_BYTES, Collective, Op, all_reduce_bytes, sent_bytes


@pytest.mark.parametrize(
    ("items", "item_bytes", "ranks", "sent"),
    [
        (576, 4, 1, (0,)),
        (576, 4, 2, (2304, 2304)),
        (576, 4, 4, (6912,) * 4),
        (AT_ONCE_BYTES // 4, 4, 3, (32_768,) * 3),  # at once: all to both others
        (4097, 4, 3, (21_848, 21_852, 21_852)),  # pieces of 1365, 1366 and 1366: to send 4097 and the own piece
        (3 * BLOCK_BYTES, 1, 3, (4 * BLOCK_BYTES,) * 3),  # one whole block: 3 + 1 pieces
        (3 * BLOCK_BYTES + 3, 1, 3, (4 * BLOCK_BYTES + 4,) * 3),  # a second block of 3 items
        (1_000_001, 2, 2, (2_000_002,) * 2),
    ],
)
def test_known_sums(items: int, item_bytes: int, ranks: int, sent: tuple[int, ...]) -> None:
    assert all_reduce_bytes(items, item_bytes, ranks) == sent


@given(items=st.integers(0, 3_000_000), item_bytes=st.sampled_from([1, 2, 4, 8]), ranks=st.integers(1, 8))
def test_a_sum_sends_at_least_what_it_must(items: int, item_bytes: int, ranks: int) -> None:
    """Each item is summed somewhere and known everywhere: 2 (n - 1) of n parts a rank on average; at once: n - 1."""
    sent = all_reduce_bytes(items, item_bytes, ranks)
    assert len(sent) == ranks
    if ranks <= 2 or items * item_bytes <= AT_ONCE_BYTES:
        assert sum(sent) == ranks * (ranks - 1) * items * item_bytes
    else:
        assert sum(sent) == 2 * (ranks - 1) * items * item_bytes
        blocks = -(-items * item_bytes // (BLOCK_BYTES * ranks))
        assert max(sent) - min(sent) <= (ranks - 2) * item_bytes * blocks


@given(rows=st.integers(0, 1000), columns=st.integers(1, 9), ranks=st.integers(1, 8))
def test_gathers_and_scatters(rows: int, columns: int, ranks: int) -> None:
    """What one rank brings goes to all others; what one rank is to add comes from all others."""
    gather = sent_bytes(Collective(Op.ALL_GATHER, rows, columns, 4), ranks)
    scatter = sent_bytes(Collective(Op.REDUCE_SCATTER, rows, columns, 4), ranks)
    assert sum(gather) == sum(scatter) == (ranks - 1) * rows * columns * 4
    assert all(
        g // max(1, ranks - 1) + s == rows * columns * 4 for g, s in zip(gather, scatter, strict=True) if ranks > 1
    )


def test_uneven_rows_and_candidates() -> None:
    assert sent_bytes(Collective(Op.ALL_GATHER, 5, 10, 4), 2) == (120, 80)
    assert sent_bytes(Collective(Op.REDUCE_SCATTER, 5, 10, 4), 2) == (80, 120)
    assert sent_bytes(Collective(Op.ALL_GATHER, 6, 2, 8, even=False), 3) == (64,) * 3
