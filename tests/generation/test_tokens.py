"""The same tokens, whatever the split: stages, schedule, micro-batches, chunks and users."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from plait.generation.answer import Request, answer
from plait.generation.launch import ProcessRanks, ThreadRanks
from plait.generation.opened import Opened
from plait.plans.sampling import SamplingParams
from plait.weights.index import WeightsIndex
from tests.generation.splits import split, tokens_of

FRANCE = [504, 3575, 282, 4649, 314, 7042, 30, 2]
GRAVITY = [22007, 6463, 314, 253, 4959, 1909, 281, 6944, 338, 6601, 260, 26589, 282, 42548]


def prompts(lengths: list[int]) -> list[tuple[int, ...]]:
    return [tuple((7 * position + 31 * request) % 320 for position in range(n)) for request, n in enumerate(lengths)]


def requests_for(lengths: list[int], max_tokens: int = 12, sampling: SamplingParams | None = None) -> list[Request]:
    return [Request(ids, max_tokens, sampling=sampling or SamplingParams()) for ids in prompts(lengths)]


@pytest.fixture(scope="session")
def greedy(tiny_directory: Path) -> dict[int, list[int]]:
    """What transformers generates for the prompts of 10, 70, 130, 200 tokens."""
    model = AutoModelForCausalLM.from_pretrained(tiny_directory, dtype=torch.float32)
    answers = {}
    for ids in prompts([10, 70, 130, 200]):
        prompt = torch.tensor([ids])
        mask = torch.ones_like(prompt)  # or token 0 would be taken for padding
        made = model.generate(prompt, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=None)
        answers[len(ids)] = made[0, len(ids) :].tolist()
    return answers


SPLITS = [
    split(6),
    split(6, schedule="layerwise", chunk=256),
    split(3, 3, schedule="layerwise"),
    split(3, 3, micro_batches=2),
    split(1, 5, micro_batches=3, chunk=128),
    split(2, 3, 1, micro_batches=2),
    split(2, 2, 2, schedule="layerwise", chunk=192),
    split(1, 1, 1, 1, 1, 1, micro_batches=4),
    split(4, 2, micro_batches=4, slots=2),
]


@pytest.mark.parametrize("plan", SPLITS, ids=lambda plan: f"{plan.layout.cut}-{plan.schedule}-{plan.micro_batches}")
def test_tokens_of_transformers(plan, tiny: WeightsIndex, greedy: dict[int, list[int]]) -> None:  # type: ignore[no-untyped-def]
    assert tokens_of(plan, tiny, requests_for([10, 70, 130, 200])) == list(greedy.values())


@pytest.mark.parametrize("plan", SPLITS[2:], ids=lambda plan: f"{plan.layout.cut}-{plan.schedule}-{plan.micro_batches}")
def test_sampled_tokens_depend_on_the_seed_alone(plan, tiny: WeightsIndex) -> None:  # type: ignore[no-untyped-def]
    sampling = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=3)
    wanted = tokens_of(SPLITS[0], tiny, requests_for([10, 70, 130], sampling=sampling))
    assert tokens_of(plan, tiny, requests_for([10, 70, 130], sampling=sampling)) == wanted
    other = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=4)
    assert tokens_of(plan, tiny, requests_for([10, 70, 130], sampling=other)) != wanted


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.permutations([1, 2, 3]),
    st.sampled_from(["layerwise", "pipelined"]),
    st.integers(1, 4),
    st.sampled_from([64, 128, 192]),
    st.lists(st.integers(1, 220), min_size=1, max_size=6),
    st.integers(1, 4),
    st.floats(0, 1.5),
)
def test_any_split_any_users(tiny: WeightsIndex, cut, schedule, micro_batches, chunk, lengths, slots, heat) -> None:  # type: ignore[no-untyped-def]
    micro_batches = 1 if schedule == "layerwise" else micro_batches
    plan = split(*cut, schedule=schedule, micro_batches=micro_batches, chunk=chunk, slots=slots)
    requests = requests_for(lengths, 6, SamplingParams(temperature=heat, seed=1))
    alone = [tokens_of(split(6, slots=1), tiny, [request])[0] for request in requests[:1]]
    answers = tokens_of(plan, tiny, requests)
    assert answers[:1] == alone
    assert answers == tokens_of(split(6, slots=len(lengths)), tiny, requests)


def test_an_end_token_ends_one_request_and_frees_its_slot(tiny: WeightsIndex, greedy: dict[int, list[int]]) -> None:
    """Requests that stop on a token of theirs, more of them than slots; what others say does not change."""
    wanted = list(greedy.values())
    stops = [(answer[3],) if index % 2 else () for index, answer in enumerate(wanted)]
    requests = [Request(ids, 12, stop) for ids, stop in zip(prompts([10, 70, 130, 200]), stops, strict=True)]
    for plan in (split(6, slots=2), split(3, 3, micro_batches=2, slots=3), split(2, 2, 2, micro_batches=3, slots=2)):
        answers = answer(plan, tiny, requests, ThreadRanks).answers
        for one, full, stop in zip(answers, wanted, stops, strict=True):
            end = full.index(stop[0]) + 1 if stop else 12
            assert one.tokens == full[:end]
            assert one.finish_reason == ("stop" if stop else "length")


@pytest.mark.parametrize("counts", [(30,), (19, 11), (6, 6, 6, 6, 6)])
@pytest.mark.parametrize("schedule", ["layerwise", "pipelined"])
@pytest.mark.parametrize("users", [1, 6])
def test_the_demo_answers_as_the_reference(demo: Opened, counts: tuple[int, ...], schedule: str, users: int) -> None:
    """The design's reference: transformers reading the same file in float32, greedy, with the file's chat template."""
    micro_batches = min(len(counts), users) if schedule == "pipelined" else 1
    plan = split(*counts, schedule=schedule, micro_batches=micro_batches, slots=users, context=128)
    request = Request(demo.encode("What is the capital of France?"), 16, demo.stop)
    assert tokens_of(plan, demo.index, [request] * users) == [FRANCE] * users
    assert demo.tokenizer.decode(FRANCE) == "The capital of France is Paris."


def test_the_demo_explains_gravity_over_processes(demo: Opened) -> None:
    plan = split(20, 10, micro_batches=2, slots=2, context=128)
    requests = [
        Request(demo.encode(text), 14, demo.stop) for text in ("What is gravity?", "What is the capital of France?")
    ]
    outcome = answer(plan, demo.index, requests, ProcessRanks)
    assert [one.tokens for one in outcome.answers] == [GRAVITY, FRANCE]
    assert [one.finish_reason for one in outcome.answers] == ["length", "stop"]
    for one, weights in zip(outcome.ranks, outcome.weight_bytes, strict=True):
        assert one.peak_bytes < 1.3 * weights + 400e6
