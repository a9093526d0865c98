"""Draws follow the distribution, depend on their key alone, and filter by the standard definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.errors import RequestError
from plait.nn.filters import keep
from plait.nn.group import Alone
from plait.nn.hashing import fold, gumbel, mix
from plait.nn.sampling import sample
from plait.plans.sampling import SamplingParams

GREEDY = SamplingParams()


def draws(logits: torch.Tensor, params: SamplingParams, count: int) -> torch.Tensor:
    rows = logits.expand(count, -1)
    return sample(rows, [params] * count, [3] * count, range(count))


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.zeros(2, 50000)
    logits[0, [40000, 17, 49999]] = 5.0
    assert sample(logits, [GREEDY] * 2, [0, 1], [0, 0]).tolist() == [17, 0]
    mixed = sample(logits, [GREEDY, SamplingParams(temperature=1.0)], [0, 1], [0, 0])
    assert mixed[0] == 17


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_tempered_distribution(temperature: float) -> None:
    logits, count = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0]), 20000
    wanted = torch.softmax(logits / temperature, 0) * count
    counts = torch.bincount(draws(logits, SamplingParams(temperature, seed=11), count), minlength=6)
    chi_square = float(((counts - wanted) ** 2 / wanted).sum())
    assert chi_square < 20.5  # five degrees of freedom: 0.1 % of right samplers exceed this


def test_a_draw_depends_on_seed_request_and_position_and_on_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 1000, generator=generator)
    params = [SamplingParams(1.0, top_p=0.5 + i / 20, top_k=40 * (i % 2), seed=i) for i in range(8)]
    together = sample(logits, params, range(8), range(100, 108))
    for i in range(8):
        assert sample(logits[i : i + 1], params[i : i + 1], [i], [100 + i])[0] == together[i]
    flat = torch.zeros(1, 5000)
    hot = SamplingParams(1.0)
    keys = [(hot, 0, 0), (SamplingParams(1.0, seed=1), 0, 0), (hot, 1, 0), (hot, 0, 1)]
    assert len({int(sample(flat, [params], [request], [position])) for params, request, position in keys}) == 4


def kept_of(scores: torch.Tensor, params: SamplingParams) -> list[int]:
    return keep([scores], [params], Alone())[0].ids(scores).tolist()


def kept_by_definition(scores: list[float], params: SamplingParams) -> list[int]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: params.top_k or len(scores)]
    total = sum(math.exp(scores[i]) for i in order)
    kept, mass = [], 0.0
    for i in order:
        if mass >= params.top_p and kept:
            break
        kept.append(i)
        mass += math.exp(scores[i]) / total
    return sorted(kept)


@settings(max_examples=200, deadline=None)
@given(
    scores=st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=12),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1e-6, 0.13, 0.37, 0.71, 0.97, 1.0]),
)
def test_filters_keep_what_their_definitions_say(scores: list[float], top_k: int, top_p: float) -> None:
    params = SamplingParams(1.0, top_p=top_p, top_k=top_k)
    assert kept_of(torch.tensor(scores), params) == kept_by_definition(scores, params)


def test_a_nucleus_wider_than_the_first_look() -> None:
    scores = torch.zeros(5000)
    scores[123] = 1.0
    assert kept_of(scores, SamplingParams(1.0, top_p=0.5)) == kept_by_definition(
        scores.tolist(), SamplingParams(1.0, top_p=0.5)
    )


def test_filtered_tokens_are_never_drawn() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0, 0.0])
    assert set(draws(logits, SamplingParams(5.0, top_k=3), 300).tolist()) == {1, 2, 3}
    assert set(draws(logits, SamplingParams(1.0, top_p=0.01), 50).tolist()) == {1}


def test_the_mix_is_splitmix64() -> None:
    # the first outputs of Vigna's splitmix64.c with the state 1234567
    state, gamma = 1234567, 0x9E3779B97F4A7C15
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    words = [mix(0, torch.tensor([_signed(state + i * gamma)])).item() % 2**64 for i in range(3)]
    assert words == outputs
    assert [fold(state + i * gamma) % 2**64 for i in range(3)] == outputs
    assert mix(fold(4, 5), torch.tensor([6])).item() == fold(4, 5, 6)


def _signed(word: int) -> int:
    word %= 2**64
    return word - 2**64 if word >> 63 else word


def test_noise_has_the_moments_of_a_gumbel() -> None:
    noise = gumbel(fold(1), torch.arange(200_000)).double()
    assert noise.isfinite().all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"temperature": -1.0},
            "temperature is -1.0; it must be a finite number, 0 or above "
            "(0 takes the likeliest token; type --temperature 0.7 for varied text)",
        ),
        (
            {"temperature": math.nan},
            "temperature is nan; it must be a finite number, 0 or above "
            "(0 takes the likeliest token; type --temperature 0.7 for varied text)",
        ),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0 and at most 1 (type --top-p 1 to keep all)"),
        ({"top_p": 1.5}, "top_p is 1.5; it must be above 0 and at most 1 (type --top-p 1 to keep all)"),
        ({"top_k": -2}, "top_k is -2; it must be 0 or above (type --top-k 0 to keep all tokens)"),
        ({"seed": -1}, "seed is -1; it must be from 0 to 2**63 - 1 (type --seed 0)"),
    ],
)
def test_impossible_values(given: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**given)  # type: ignore[arg-type]
    assert str(caught.value) == message
