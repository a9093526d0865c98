"""Tensor groups: the tokens of one process, whatever shares a layer; and exactly the bytes that the rules say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.errors import ParityError
from plait.generation import rank as rank_module
from plait.generation.answer import Outcome, Request, answer
from plait.generation.launch import ProcessRanks, ThreadRanks
from plait.generation.opened import Opened
from plait.generation.verify import verify
from plait.plans.action import Kind
from plait.plans.exchanges import forward_bytes
from plait.plans.plan import Plan
from plait.plans.rules import rank_message_bytes
from plait.plans.sampling import SamplingParams
from plait.weights.index import WeightsIndex
from tests.generation.splits import split, tokens_of
from tests.generation.test_tokens import FRANCE, GRAVITY

GREEDY = SamplingParams()
HOT = SamplingParams(temperature=1.1, seed=5)
FEW = SamplingParams(temperature=0.9, top_k=20, seed=6)
NUCLEUS = SamplingParams(temperature=0.9, top_p=0.7, seed=7)
BOTH = SamplingParams(temperature=0.8, top_p=0.9, top_k=40, seed=8)
WAYS = (GREEDY, HOT, FEW, NUCLEUS, BOTH)


def requests_for(lengths: list[int], ways: tuple[SamplingParams, ...] = WAYS, tokens: int = 6) -> list[Request]:
    """Prompts of so many tokens; of as many ways to sample as there are, one after the other."""
    prompts = [tuple((7 * at + 31 * request) % 331 for at in range(n)) for request, n in enumerate(lengths)]
    return [Request(ids, tokens, sampling=ways[at % len(ways)]) for at, ids in enumerate(prompts)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([(3,), (1, 2), (2, 1)]),
    st.integers(1, 5),
    st.data(),
    st.booleans(),
    st.sampled_from(["layerwise", "pipelined"]),
    st.integers(1, 3),
    st.lists(st.sampled_from([1, 2, 63, 65, 130]), min_size=1, max_size=5),
    st.integers(1, 4),
    st.permutations(WAYS),
)
def test_the_tokens_of_one_process(  # type: ignore[no-untyped-def]
    uneven: WeightsIndex, cut, tp, data, sequence, schedule, micro_batches, lengths, slots, ways
) -> None:
    shares = data.draw(st.one_of(st.just(()), st.tuples(*[st.integers(1, 4)] * tp)))
    plan = split(
        *cut,
        tp=tp,
        shares=shares,
        sequence=sequence and tp > 1,
        schedule=schedule,
        micro_batches=1 if schedule == "layerwise" else micro_batches,
        slots=slots,
        context=192,
    )
    requests = requests_for(lengths, tuple(ways))
    assert tokens_of(plan, uneven, requests) == tokens_of(split(3, slots=5, context=192), uneven, requests)


@pytest.mark.parametrize("sequence", [False, True])
def test_more_ranks_than_heads(uneven: WeightsIndex, sequence: bool) -> None:
    """Ranks 6 and 7 have no head, and with one token in flight most have no row of it."""
    requests = requests_for([1, 70, 3])
    wanted = tokens_of(split(3, context=192), uneven, requests)
    assert tokens_of(split(3, tp=8, sequence=sequence, context=192), uneven, requests) == wanted


PROCESSES = [
    split(3, tp=2, context=192),
    split(3, tp=3, shares=(3, 2, 1), sequence=True, schedule="layerwise", context=192),
]


def name(plan: Plan) -> str:
    layout = plan.layout
    return f"{layout.cut}-tp{layout.tp}{layout.stages[0].shares}{'-sequence' if layout.sequence else ''}"


@pytest.mark.parametrize("plan", PROCESSES, ids=name)
def test_the_tokens_of_one_process_over_shared_memory(uneven: WeightsIndex, plan: Plan) -> None:
    """All ways to sample in one run, over shards of the vocabulary."""
    requests = requests_for([10, 70, 1, 130, 33], tokens=10)
    outcome = answer(plan, uneven, requests, ProcessRanks)
    assert [one.tokens for one in outcome.answers] == tokens_of(split(3, context=192), uneven, requests)


def test_an_end_frees_a_slot_on_every_rank(uneven: WeightsIndex) -> None:
    """Fewer slots than requests, some of which stop early: what the first stage's other ranks keep is what counts."""
    plain = requests_for([10, 70, 130, 33, 5, 64], (GREEDY,), 12)
    full = tokens_of(split(3, slots=6, context=192), uneven, plain)
    stops = [(tokens[3],) if number % 2 else () for number, tokens in enumerate(full)]
    requests = [replace(one, stop=stop) for one, stop in zip(plain, stops, strict=True)]
    wanted = tokens_of(split(3, slots=6, context=192), uneven, requests)
    assert wanted != full
    for plan in (
        split(3, tp=2, slots=2, context=192),
        split(1, 2, tp=2, micro_batches=2, slots=3, context=192),
        split(1, 1, 1, tp=2, micro_batches=3, slots=2, context=192, sequence=True),
    ):
        assert tokens_of(plan, uneven, requests) == wanted


class TestTheDemo:
    """Public case P7: 9 query heads and 3 KV heads that do not divide by 2."""

    @pytest.mark.parametrize(
        "plan",
        [
            split(30, tp=2, slots=2, context=128),
            split(30, tp=3, slots=2, context=128, sequence=True),
            split(15, 15, tp=2, slots=2, context=128, micro_batches=2),
        ],
        ids=name,
    )
    def test_answers_as_the_reference(self, demo: Opened, plan: Plan) -> None:
        requests = [
            Request(demo.encode(text), 14, demo.stop) for text in ("What is gravity?", "What is the capital of France?")
        ]
        assert tokens_of(plan, demo.index, requests) == [GRAVITY, FRANCE]

    def test_over_processes_each_rank_holds_its_shard(self, demo: Opened) -> None:
        plan = split(30, tp=2, slots=1, context=128)
        outcome = answer(plan, demo.index, [Request(demo.encode("What is the capital of France?"), 9, demo.stop)])
        assert outcome.answers[0].tokens == FRANCE
        whole = answer(split(30, slots=1, context=128), demo.index, [Request((1,), 1)], ThreadRanks).weight_bytes[0]
        assert all(0.4 * whole < one < 0.6 * whole for one in outcome.weight_bytes)
        assert sum(outcome.weight_bytes) < 1.02 * whole  # norms, and the KV head that both of them read


def require_bytes_by_rule(plan: Plan, outcome: Outcome, index: WeightsIndex) -> int:
    """Every action of every rank put on its links what the rules say; all of them together."""
    layout, rounds = plan.layout, {one.number: one for one in outcome.rounds}
    total = 0
    for span in outcome.measured.spans:
        stage, work = span.action.stage, rounds[span.action.round].work[span.action.micro_batch]
        place = layout.tensor_group(stage, span.rank).index(span.rank)
        wanted = 0
        if span.action.kind is Kind.FORWARD:
            wanted = forward_bytes(index.spec, layout, stage, work)[place]
        elif span.action.kind.sends:
            wanted = rank_message_bytes(span.action, work, layout, index.spec.hidden)[place]
        assert span.payload_bytes == wanted, (span.rank, span.action)
        total += wanted
    assert total == sum(sum(one.sent_bytes) for one in outcome.ranks)
    return total


@pytest.mark.parametrize("counts", [(3,), (1, 2)])
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("sequence", [False, True])
def test_measured_bytes_are_those_of_the_rules(
    uneven: WeightsIndex, counts: tuple[int, ...], tp: int, sequence: bool
) -> None:
    plan = split(*counts, tp=tp, sequence=sequence, micro_batches=len(counts), context=192)
    outcome = answer(plan, uneven, requests_for([10, 70, 130], (GREEDY, HOT)), ThreadRanks)
    assert require_bytes_by_rule(plan, outcome, uneven) > 0


def test_tokens_and_measured_bytes_over_shared_memory(uneven: WeightsIndex) -> None:
    plan = split(1, 2, tp=2, micro_batches=2, context=192)
    requests = requests_for([10, 130, 1], (GREEDY, HOT))
    outcome = answer(plan, uneven, requests, ProcessRanks)
    assert [one.tokens for one in outcome.answers] == tokens_of(split(3, context=192), uneven, requests)
    assert require_bytes_by_rule(plan, outcome, uneven) > 0
    forwards = [span for span in outcome.measured.spans if span.action.kind is Kind.FORWARD]
    assert {span.rank for span in forwards} == {0, 1, 2, 3}
    assert len(forwards) == 4 * sum(len(one.work) for one in outcome.rounds)


def test_logits_of_all_shards_are_put_together(uneven: WeightsIndex) -> None:
    request = Request(tuple(range(1, 90)), 4, logits=True)
    (whole,) = answer(split(3), uneven, [request], ThreadRanks).answers
    for plan in (split(3, tp=3), split(1, 2, tp=2, sequence=True), split(3, tp=4, shares=(300, 300, 1, 300))):
        (one,) = answer(plan, uneven, [request], ThreadRanks).answers
        for mine, wanted in zip(one.logits, whole.logits, strict=True):
            a, b = np.frombuffer(mine, np.float32), np.frombuffer(wanted, np.float32)
            assert a.shape == (331,)
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.parametrize("plan", [split(3, tp=2), split(1, 2, tp=3, sequence=True)], ids=name)
def test_verify(uneven: WeightsIndex, plan: Plan) -> None:
    verdict = verify(plan, uneven, range(1, 90), 6, ThreadRanks, ThreadRanks)
    assert verdict.bound == 1e-5
    assert (verdict.compared, verdict.tokens) == (6, 6)


def test_verify_finds_a_shard_that_is_another_ranks(uneven: WeightsIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded fault: rank 1 computes with the columns of rank 0."""
    original = rank_module.load_stage

    def faulty(index, first, end, dtype, progress=None, shard=None):  # type: ignore[no-untyped-def]
        tensors = original(index, first, end, dtype, progress, shard)
        if shard is not None and shard.index == 1:
            tensors["layers.1.gate.weight"] = tensors["layers.1.gate.weight"].roll(1, 0)
        return tensors

    monkeypatch.setattr(rank_module, "load_stage", faulty)
    with pytest.raises(ParityError) as error:
        verify(split(3, tp=2), uneven, range(1, 90), 4, ThreadRanks, ThreadRanks)
    assert str(error.value).startswith("the split's logits differ from one process's by ")
