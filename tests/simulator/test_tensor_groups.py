"""What each rank of a tensor group puts on its links, simulated: by hand, by the rule, and with faults sown in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs import serving
from plait.costs.serving import ServingModel
from plait.plans import exchanges
from plait.plans.action import Kind
from plait.plans.exchanges import Collective, Op, Sharing, all_reduce_bytes, entry_exchanges, forward_bytes
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Round, Row
from plait.plans.rules import rank_message_bytes
from plait.schedules.generation import make_round
from plait.simulator.simulate import simulate
from plait.spec.cluster import Cluster, Device, Host, Link
from plait.spec.model import ModelSpec
from plait.timeline.compare import COMPUTE, TRANSFER, compare
from plait.timeline.metrics import generation_metrics
from plait.timeline.timeline import Timeline

TINY = ModelSpec("tiny", "llama", 4, 64, 4, 2, 16, 128, 100, 512, 1e-5, None, (None,) * 4)
LATENCY_S, BANDWIDTH = 1e-3, 1e6


def cluster_of(devices: int) -> Cluster:
    """A device a host, each joined with each, that compute in no time."""
    names = [f"d{index}" for index in range(devices)]
    return Cluster(
        tuple(Host(f"host-{name}") for name in names),
        tuple(Device(name, f"host-{name}", 10**9, {"float32": float("inf")}, float("inf")) for name in names),
        tuple(Link(one, other, LATENCY_S, BANDWIDTH) for one in names for other in names if one != other),
    )


def layout_of(layers: tuple[int, ...], tp: int, *, sequence: bool = False) -> Layout:
    """A stage for each count of layers."""
    stages, first = [], 0
    for index, count in enumerate(layers):
        ranks = tuple(range(index * tp, (index + 1) * tp))
        names = tuple(f"d{rank}" for rank in ranks)
        stages.append(Stage((first, first + count), ranks, host=f"box{index}", devices=names))
        first += count
    return Layout({"pp": len(layers), "tp": tp}, tuple(stages), 4, sequence=sequence)


def simulated(layout: Layout, work: tuple[MicroBatch, ...], spec: ModelSpec = TINY) -> tuple[Timeline, Round]:
    """A prefill or a decoding round, whose tokens come back in the next."""
    one = make_round(0, len(layout.stages), work, (), "layerwise")
    costs = ServingModel(spec, cluster_of(layout.ranks), "float32").costs()
    return simulate(layout, [one], costs, spec), one


def sent_by_rank(timeline: Timeline) -> dict[int, int]:
    sent: dict[int, int] = defaultdict(int)
    for span in timeline.spans:
        sent[span.rank] += span.payload_bytes
    return dict(sent)


def require_rule(timeline: Timeline, one: Round, layout: Layout, spec: ModelSpec = TINY) -> None:
    """Every span of every rank has the bytes of `plans.exchanges` and `plans.rules`, and nothing is left out."""
    total = 0
    for span in timeline.spans:
        stage, work = span.action.stage, one.work[span.action.micro_batch]
        place = layout.tensor_group(stage, span.rank).index(span.rank)
        wanted = 0
        if span.action.kind is Kind.FORWARD:
            wanted = forward_bytes(spec, layout, stage, work)[place]
        elif span.action.kind.sends:
            wanted = rank_message_bytes(span.action, work, layout, spec.hidden)[place]
        assert span.payload_bytes == wanted, (span.rank, span.action)
        total += wanted
    assert generation_metrics(timeline, [one])["comm_bytes"] == total


def test_two_stages_of_two_ranks_by_hand() -> None:
    """3 rows of 64 float32 (768 bytes), of which the last yields a token.

    First stage, 2 layers: the embedding's sum and 4 more. It hands on 2 rows and 1 row. Second stage: these rows are
    gathered, a layer sums 3 rows twice, the last one 1 row twice, then 16 bytes of candidates; the token goes back.
    """
    layout = layout_of((2, 2), 2)
    timeline, _ = simulated(layout, (MicroBatch((Row(0, 0, 0, 3, True),)),))
    first, second = 5 * 768, 2 * 768 + 2 * 256 + 16
    assert sent_by_rank(timeline) == {0: first + 512, 1: first + 256, 2: 512 + second + 8, 3: 256 + second + 8}


def test_a_sequence_in_thirds_by_hand() -> None:
    """5 rows of 256 bytes in 2, 2 and 1: a sum sends what is not one's own, a gather what is to both others."""
    layout = layout_of((4,), 3, sequence=True)
    timeline, _ = simulated(layout, (MicroBatch((Row(0, 0, 0, 5, True),)),))
    sums, gathers = 1 + 3 * 2, 3 * 2 + 1  # of whole rows: the embedding's and two a layer, but for the last layer's
    last = 2 * 2 * 256 + 2 * 16  # two sums of one row at once to both others, and the candidates
    assert sent_by_rank(timeline) == {
        rank: sums * (5 - mine) * 256 + gathers * 2 * mine * 256 + last for rank, mine in enumerate((2, 2, 1))
    }


def test_large_sums_are_sent_in_pieces_that_differ() -> None:
    """At 67 rows × 64 in three pieces of 1429, 1429 and 1430 values: all but the own one, and the own one twice."""
    layout = layout_of((4,), 3)
    timeline, _ = simulated(layout, (MicroBatch((Row(0, 0, 0, 67, True),)),))
    last = 2 * 2 * 256 + 2 * 16
    whole = all_reduce_bytes(67 * 64, 4, 3)
    assert whole == (4 * (4288 - 1429 + 2 * 1429), 4 * (4288 - 1429 + 2 * 1429), 4 * (4288 - 1430 + 2 * 1430))
    assert sent_by_rank(timeline) == {rank: 7 * size + last for rank, size in enumerate(whole)}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, tuple[MicroBatch, ...], ModelSpec]:
    tp, stages = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    ends = sorted(draw(st.sets(st.integers(1, 3), min_size=stages - 1, max_size=stages - 1)))
    layers = tuple(end - first for first, end in zip((0, *ends), (*ends, 4), strict=True))
    work = tuple(
        MicroBatch((Row(slot, slot, draw(st.integers(0, 50)), draw(st.integers(1, 90)), draw(st.booleans())),))
        for slot in range(draw(st.integers(1, 3)))
    )
    norms = draw(st.sampled_from([None, "head", "full"]))
    spec = ModelSpec("tiny", "llama", 4, 64, 4, 2, 16, 128, 100, 512, 1e-5, None, (None,) * 4, qk_norm=norms)
    return layout_of(layers, tp, sequence=draw(st.booleans())), work, spec


@settings(max_examples=60, deadline=None)
@given(cases())
def test_bytes_are_those_of_the_rule(case: tuple[Layout, tuple[MicroBatch, ...], ModelSpec]) -> None:
    """Whatever the cut: also five ranks for four heads."""
    layout, work, spec = case
    timeline, one = simulated(layout, work, spec)
    require_rule(timeline, one, layout, spec)
    again = compare(timeline, timeline)
    assert len(again.pairs) == len(timeline.spans)
    assert not again.only_predicted
    assert not again.only_measured


@given(tp=st.integers(2, 5), tokens=st.integers(1, 40), sequence=st.booleans())
def test_what_is_exchanged_is_the_transfer_of_a_forward(tp: int, tokens: int, sequence: bool) -> None:
    """Devices that compute in no time: a forward is all transfer, one after the other as long as the wires take."""
    layout = layout_of((4,), tp, sequence=sequence)
    timeline, _ = simulated(layout, (MicroBatch((Row(0, 0, 0, tokens, False),)),))
    spans = [span for span in timeline.spans if span.action.kind is Kind.FORWARD]
    assert [span.rank for span in spans] == list(range(tp))
    for span in spans:
        assert sum(part.end_s - part.start_s for part in span.parts if part.what == COMPUTE) == pytest.approx(0.0)
        seconds = sum(part.end_s - part.start_s for part in span.parts if part.what == TRANSFER)
        assert seconds == pytest.approx(span.end_s - span.start_s)


def test_known_seconds_of_a_decoding() -> None:
    """Two ranks, 1 ms and 1 MB/s: 9 sums of 256 bytes (the embedding's, two a layer) and candidates of 16 bytes."""
    timeline, _ = simulated(layout_of((4,), 2), (MicroBatch((Row(0, 0, 9, 1, True),)),))
    assert timeline.end_s == pytest.approx(9 * (LATENCY_S + 256e-6) + LATENCY_S + 16e-6)


def test_known_seconds_of_a_sequence() -> None:
    """4 rows of 256 bytes in halves: 7 scatters and 7 gathers of 512 bytes each way; nothing is sampled."""
    timeline, _ = simulated(layout_of((4,), 2, sequence=True), (MicroBatch((Row(0, 0, 0, 4, False),)),))
    assert timeline.end_s == pytest.approx(14 * (LATENCY_S + 512e-6))


def without_embedding(spec: ModelSpec, sharing: Sharing, tokens: int, *, is_first: bool) -> Iterator[Collective]:
    """The seeded fault: the first stage's sum of the embedding's parts is forgotten."""
    if not is_first:
        yield from entry_exchanges(spec, sharing, tokens, is_first=False)


def whole_last_layer(spec: ModelSpec, sharing: Sharing, layer: int, tokens: int, sampled: int) -> Iterator[Collective]:
    """The seeded fault: the last layer sums all rows, as every other one does."""
    yield from exchanges.layer_exchanges(spec, sharing, 0 if spec.layers > 1 else layer, tokens, sampled)


def no_rows_between(spec: ModelSpec, sharing: Sharing, tokens: int, *, is_first: bool) -> Iterator[Collective]:
    """The seeded fault: a later stage does not gather its slices."""
    if is_first:
        yield from entry_exchanges(spec, sharing, tokens, is_first=True)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("entry_exchanges", without_embedding),
        ("entry_exchanges", no_rows_between),
        ("layer_exchanges", whole_last_layer),
        ("sent_bytes", lambda one, ranks: (one.rows * one.row_items * one.item_bytes,) * ranks),
    ],
    ids=["no-embedding", "no-gather", "whole-last-layer", "all-bytes-alike"],
)
def test_costs_that_forget_something_are_caught(name: str, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of((2, 2), 3)
    work = (MicroBatch((Row(0, 0, 0, 7, True),)),)
    require_rule(*simulated(layout, work), layout)
    monkeypatch.setattr(serving, name, fault)
    with pytest.raises(AssertionError):
        require_rule(*simulated(layout, work), layout)


def test_a_rule_that_forgets_the_embedding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs and rule read the same lines: bytes worked out by hand tell that both of them are wrong."""
    monkeypatch.setattr(exchanges, "entry_exchanges", without_embedding)
    monkeypatch.setattr(serving, "entry_exchanges", without_embedding)
    with pytest.raises(AssertionError):
        test_two_stages_of_two_ranks_by_hand()
    with pytest.raises(AssertionError):
        test_known_seconds_of_a_decoding()


def test_candidates_are_of_the_sampled_rows() -> None:
    """No row yields a token: the last layer exchanges nothing of its own."""
    model = ServingModel(TINY, cluster_of(3), "float32")
    names = ("d0", "d1", "d2")
    assert model.layer_exchange(names, 3, 8, 0).sent_bytes == 0
    assert model.layer_exchange(names, 3, 8, 2).sent_bytes == 2 * 2 * 2 * 256 + 2 * 2 * 16
    gathered = sum(exchanges.sent_bytes(Collective(Op.ALL_GATHER, 6, 2, 8, even=False), 3))
    assert gathered == 3 * 2 * 2 * 16
