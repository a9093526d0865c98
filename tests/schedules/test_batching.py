from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import RequestError
from plait.plans.round import MicroBatch, Row
from plait.schedules.batching import Batcher, check_request, deal


def drive(batcher: Batcher) -> list[tuple[MicroBatch, ...]]:
    """Every token comes at once; until nothing is left."""
    rounds = []
    while work := batcher.plan():
        batcher.commit(work)
        rounds.append(work)
        for micro_batch in work:
            for row in micro_batch.rows:
                if row.samples:
                    batcher.received(row.request, ends=False)
    assert batcher.idle
    return rounds


def test_a_prompt_is_cut_on_the_grid_and_its_last_chunk_samples() -> None:
    batcher = Batcher(slots=1, context=200, chunk=64, micro_batches=1)
    batcher.add(0, 130, 3)
    rows = [row for work in drive(batcher) for micro_batch in work for row in micro_batch.rows]
    assert rows == [
        Row(0, 0, 0, 64, False),
        Row(0, 0, 64, 64, False),
        Row(0, 0, 128, 2, True),
        Row(0, 0, 130, 1, True),
        Row(0, 0, 131, 1, True),
    ]


def test_everyone_decodes_together_dealt_by_slot() -> None:
    batcher = Batcher(slots=5, context=100, chunk=64, micro_batches=2)
    for request in range(5):
        batcher.add(request, 10, 2)
    last = drive(batcher)[-1]
    assert [[row.request for row in micro_batch.rows] for micro_batch in last] == [[0, 1, 2], [3, 4]]


def test_who_waits_takes_the_slot_of_who_ends() -> None:
    batcher = Batcher(slots=2, context=100, chunk=64, micro_batches=1)
    for request, tokens in enumerate((1, 3, 2)):
        batcher.add(request, 10, tokens)
    slots = {row.request: row.slot for work in drive(batcher) for micro_batch in work for row in micro_batch.rows}
    assert slots == {0: 0, 1: 1, 2: 0}


def test_a_cancelled_request_leaves_its_slot() -> None:
    batcher = Batcher(slots=1, context=100, chunk=64, micro_batches=1)
    batcher.add(0, 10, 5)
    batcher.add(1, 10, 5)
    batcher.plan()
    batcher.cancel(0)
    assert [row.request for row in batcher.plan()[0].rows] == [1]
    batcher.cancel(1)
    assert batcher.idle


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 9))
def test_dealing(items: list[int], parts: int) -> None:
    rows = [Row(item, index, 0, 1, True) for index, item in enumerate(items)]
    dealt = deal(rows, parts)
    assert [row for part in dealt for row in part] == rows
    assert len(dealt) == min(parts, len(rows))
    sizes = [len(part) for part in dealt]
    assert all(sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 5),
    st.sampled_from((64, 128)),
    st.integers(1, 4),
)
def test_every_position_once_in_order(
    requests: list[tuple[int, int]], slots: int, chunk: int, micro_batches: int
) -> None:
    batcher = Batcher(slots, 400, chunk, micro_batches)
    for request, (prompt, tokens) in enumerate(requests):
        batcher.add(request, prompt, tokens)
    reached = dict.fromkeys(range(len(requests)), 0)
    sampled = dict.fromkeys(range(len(requests)), 0)
    for work in drive(batcher):
        taken = [row.slot for micro_batch in work for row in micro_batch.rows]
        assert taken == sorted(set(taken))
        assert len(work) <= micro_batches
        for row in (row for micro_batch in work for row in micro_batch.rows):
            assert row.start == reached[row.request]
            assert row.slot < slots
            reached[row.request] += row.length
            sampled[row.request] += row.samples
    assert reached == {request: prompt + tokens - 1 for request, (prompt, tokens) in enumerate(requests)}
    assert sampled == {request: tokens for request, (_, tokens) in enumerate(requests)}


@pytest.mark.parametrize(
    ("prompt", "tokens", "message"),
    [
        (0, 4, "request 7 has an empty prompt, but needs at least one token"),
        (9, 0, "request 7 asks for 0 tokens, but at least 1 can be made"),
        (
            90,
            20,
            "request 7 has a prompt of 90 tokens and asks for 20 more, 110 in all, but the context holds 100: "
            "10 too many (--context 110 would hold it)",
        ),
    ],
)
def test_refusals(prompt: int, tokens: int, message: str) -> None:
    with pytest.raises(RequestError) as error:
        check_request(7, prompt, tokens, 100)
    assert str(error.value) == message
    with pytest.raises(RequestError):
        Batcher(1, 100, 64, 1).add(7, prompt, tokens)
