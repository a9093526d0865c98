"""A stage shared by a tensor group gives what one process gives, and exchanges what the rule says, byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.nn import sharded
from plait.nn.attention import Padding, attend, padding, seen, spans
from plait.nn.cache import KVCache, cache_bytes
from plait.nn.sampling import sample
from plait.plans.round import Row
from plait.plans.sampling import SamplingParams
from plait.spec.model import ModelSpec
from plait.spec.shards import make_shards

from .models import CASES, Tiny, tiny
from .shards import Group, SharedSplit
from .splits import Split, Told
from .test_parity import told

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}
MIXED = ((24, 1, 1), (16, 7, 1, 1), (3, 1, 1, 1))


@cache
def model(case: str) -> Tiny:
    return tiny(case)


def error(ours: dict[tuple[int, int], Tensor], theirs: dict[tuple[int, int], Tensor]) -> float:
    """max|a - b| / max|b| over the logits that ours has."""
    assert ours.keys() <= theirs.keys()
    pairs = [(ours[key], theirs[key]) for key in ours]
    return max((float((a - b).abs().max()) for a, b in pairs), default=0.0) / float(
        torch.stack(list(theirs.values())).abs().max()
    )


def every(_: Told, __: Row) -> bool:
    return True


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tp", [2, 3, 5])
@pytest.mark.parametrize("case", sorted(CASES))
def test_float64_as_one_process(case: str, tp: int, sequence: bool) -> None:
    sequences = told(*MIXED)
    theirs = Split(model(case), (), torch.float64).run(sequences)
    cut = (1,) if tp == 3 else ()
    ours = SharedSplit(model(case), cut, torch.float64, tp, sequence=sequence).run(sequences, every)
    assert ours.keys() == theirs.keys()
    assert error(ours, theirs) < BOUNDS[torch.float64]


pieces = st.lists(st.sampled_from((1, 1, 2, 3, 8, 16)), min_size=1, max_size=5).map(tuple)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=st.sampled_from(sorted(CASES)),
    shares=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    cut=st.sampled_from(((), (1,), (2,))),
    sequence=st.booleans(),
    work=st.lists(pieces, min_size=1, max_size=3),
    rows=st.sampled_from((1, 4)),
    dtype=st.sampled_from((torch.float32, torch.float64)),
    silent=st.integers(0, 7),
)
def test_any_group_any_cut_any_work(
    case: str,
    shares: list[int],
    cut: tuple[int, ...],
    sequence: bool,
    work: list[tuple[int, ...]],
    rows: int,
    dtype: torch.dtype,
    silent: int,
) -> None:
    sequences = told(*work)
    theirs = Split(model(case), cut, dtype, rows).run(sequences)
    shared = SharedSplit(model(case), cut, dtype, len(shares), shares=shares, sequence=sequence, rows=rows)
    ours = shared.run(sequences, lambda one, row: (row.start + one.slot) % 8 >= silent)
    assert error(ours, theirs) < BOUNDS[dtype]


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tp", [2, 3])
def test_nine_heads_of_three_kv_heads(tp: int, sequence: bool) -> None:
    sequences = told(*MIXED)
    tied = model("llama-9-3-tied")
    theirs = Split(tied, (), torch.float32, rows=4).run(sequences)
    ours = SharedSplit(tied, (), torch.float32, tp, sequence=sequence, rows=4).run(sequences, every)
    assert error(ours, theirs) < BOUNDS[torch.float32]
    assert all(int(ours[key].argmax()) == int(theirs[key].argmax()) for key in theirs)


def test_more_ranks_than_heads_columns_or_rows_that_it_has() -> None:
    sequences = told((5, 1), (2, 1))
    theirs = Split(model("olmo2"), (), torch.float32, rows=2).run(sequences)
    shares = (1, 90, 1, 1, 1, 1)  # one rank has almost everything, ranks 0 and 2 to 5 no head at all
    spec = model("olmo2").spec
    assert [shard.heads.size for shard in make_shards(spec, 6, shares)] == [0, 4, 0, 0, 0, 0]
    for sequence in (False, True):
        ours = SharedSplit(model("olmo2"), (), torch.float32, 6, shares=shares, sequence=sequence, rows=2)
        assert error(ours.run(sequences, every), theirs) < BOUNDS[torch.float32]


def test_bfloat16_stays_near_float32() -> None:
    sequences = told(*MIXED)
    theirs = Split(model("llama-9-3-tied"), (), torch.float32).run(sequences)
    for sequence in (False, True):
        ours = SharedSplit(model("llama-9-3-tied"), (1,), torch.bfloat16, 2, sequence=sequence).run(sequences, every)
        assert all(logits.dtype == torch.float32 for logits in ours.values())
        assert error(ours, theirs) < 0.05


def test_a_bias_that_is_added_on_every_rank_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded.ShardedLayer, "_reduced", lambda _, part: part)
    sequences = told((9, 1))
    theirs = Split(model("llama-bias"), (), torch.float32).run(sequences)
    ours = SharedSplit(model("llama-bias"), (), torch.float32, 2).run(sequences, every)
    assert error(ours, theirs) > 100 * BOUNDS[torch.float32]


def test_a_kv_head_that_is_counted_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "_owned", lambda _, shard: type(shard.kv_heads)(0, shard.kv_heads.size))
    sequences = told((9, 1))
    theirs = Split(model("olmo2"), (), torch.float32).run(sequences)
    ours = SharedSplit(model("olmo2"), (), torch.float32, 3).run(sequences, every)
    assert error(ours, theirs) > 100 * BOUNDS[torch.float32]


def test_queries_are_padded_only_where_their_groups_are_uneven() -> None:
    spec = model("llama-9-3-tied").spec
    assert [padding(spec, shard) for shard in make_shards(spec, 2)] == [Padding(0, 1), Padding(2, 0)]
    assert [padding(spec, shard) for shard in make_shards(spec, 3)] == [None, None, None]
    # 2, 5 and 2 heads: the second rank reads 1, 3 and 1 of the KV heads' queries
    assert [padding(spec, shard) for shard in make_shards(spec, 3, (2, 5, 2))] == [None, Padding(2, 2), None]
    assert padding(spec, make_shards(spec, 6, (2, 2, 1, 2, 1, 1))[1]) is None  # one head of each of two KV heads


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("pad", [Padding(0, 1), Padding(2, 0)])
def test_padded_attention_of_a_decoding_row_does_not_see_its_neighbours(pad: Padding) -> None:
    lengths, slots = [180, 190, 150, 20], [0, 1, 2, 3]
    data = torch.randn(1, 4, 4, 200, 64)
    queries = torch.randn(4, 6 - sum(pad), 64)

    def attended(which: list[int]) -> Tensor:
        rows = tuple(Row(slot, slot, lengths[slot] - 1, 1, True) for slot in which)
        return attend(queries[which], seen(spans(rows, None, 200, queries), data), 0, pad)

    together = attended(slots)
    for company in ([0], [1, 2], [0, 3]):
        assert torch.equal(attended(company), together[company]), company


def test_a_rank_caches_its_kv_heads_alone() -> None:
    spec = model("llama-9-3-tied").spec
    for shard in make_shards(spec, 2):
        held = KVCache(spec, 0, 3, 2, 64, torch.float32, shard=shard)
        assert held.data.shape == (3, 2, 2 * 2, 64, spec.head_dim)
        assert held.bytes == held.data.nbytes == cache_bytes(spec, 3, 2, 64, torch.float32, shard)
    nothing = make_shards(spec, 10)[9]
    assert cache_bytes(spec, 3, 2, 64, torch.float32, nothing) == 0


# --- sampling over vocabulary shards ----------------------------------------------------------------------


def drawn(logits: Tensor, params: Sequence[SamplingParams], shares: Sequence[int]) -> None:
    """Every rank draws what one process draws."""
    spec = vocabulary(logits.shape[1])
    requests, positions = range(len(params)), range(50, 50 + len(params))
    alone = sample(logits, params, requests, positions)
    for ids in Group(make_shards(spec, len(shares), shares)).sample(logits, params, requests, positions):
        assert torch.equal(ids, alone)


def vocabulary(size: int) -> ModelSpec:
    return replace(model("llama").spec, vocab=size)


some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 0.3, 1.0, 5.0)),
    top_p=st.sampled_from((1e-6, 0.3, 0.5, 0.75, 0.97, 1.0)),
    top_k=st.sampled_from((0, 0, 1, 3, 40, 1500)),
    seed=st.integers(0, 9),
)


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from((3, 97, 2500)),
    values=st.sampled_from(("equal", "ties", "normal", "peaked")),
    params=st.lists(some_params, min_size=1, max_size=4),
    shares=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    seed=st.integers(0, 1000),
)
def test_every_rank_draws_as_one_process(
    size: int, values: str, params: list[SamplingParams], shares: list[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(params), size, generator=generator)
    if values == "equal":
        logits = torch.full_like(logits, -0.5)
    elif values == "ties":
        logits = (logits * 2).round() / 2  # with both zeros, which are equal
    elif values == "peaked":
        logits *= 8
    drawn(logits, params, shares)


def test_a_flat_nucleus_is_found_beyond_what_is_gathered() -> None:
    logits = torch.randn(3, 30_000) / 10
    logits[1] = 0.0
    params = [SamplingParams(1.0, top_p=0.6, seed=seed) for seed in range(3)]
    drawn(logits, [*params[:2], SamplingParams(1.0, top_p=0.9, top_k=9000)], (1, 1, 1))
    group = Group(make_shards(vocabulary(30_000), 2))
    group.sample(logits[:1], params[:1], [0], [0])
    sent = group.sent_bytes()
    assert sent[0] == sent[1] == 1024 * 4 + 8 + 4 * 2 * 256 * 8 + 16  # candidates, a total, four digits, one best
    assert sent[0] < logits.shape[1] // 2 * 4


def test_ties_go_to_the_lowest_id_of_all_ranks() -> None:
    logits = torch.zeros(2, 97)
    logits[0, [96, 50, 17]] = 3.0
    for ids in Group(make_shards(vocabulary(97), 4)).sample(logits, [SamplingParams()] * 2, [0, 1], [0, 0]):
        assert ids.tolist() == [17, 0]


def test_what_is_filtered_on_another_rank_is_never_drawn() -> None:
    logits = torch.arange(97.0).roll(40)[None].expand(200, -1)
    likeliest = set(logits[0].topk(5).indices.tolist())
    params = [SamplingParams(50.0, top_k=5)] * 200
    group = Group(make_shards(vocabulary(97), 3))
    found = group.sample(logits, params, [1] * 200, range(200))
    assert set(found[0].tolist()) == likeliest
    assert all(torch.equal(found[0], one) for one in found)


def test_nothing_to_draw_is_no_exchange() -> None:
    group = Group(make_shards(vocabulary(97), 2))
    assert [ids.shape for ids in group.sample(torch.empty(0, 97), [], [], [])] == [(0,), (0,)]
    assert group.sent_bytes() == (0, 0)


@pytest.mark.soak
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_whole_grid(case: str, tp: int, dtype: torch.dtype) -> None:
    sequences = told((40, 1, 1), *MIXED[1:])
    for cut in ((), (1,)):
        theirs = Split(model(case), cut, dtype).run(sequences)
        for sequence in (False, True):
            ours = SharedSplit(model(case), cut, dtype, tp, sequence=sequence).run(sequences, every)
            assert error(ours, theirs) < BOUNDS[dtype], (cut, sequence)
