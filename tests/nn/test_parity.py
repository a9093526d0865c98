"""Our logits equal those of `transformers`, for every family, however the model and the work are split."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.nn import attention, layer

from .models import CASES, Tiny, float64_reference, tiny
from .splits import Split, Told, expected, worst

FLOAT32, FLOAT64 = 1e-5, 1e-10

SPLITS = ((), (1,), (1, 2))
"""One, two and three stages of three layers."""

WHOLE = (40, 1, 1, 1)
CHUNKS = (16, 16, 7, 1, 1, 1, 1)


@cache
def model(case: str) -> Tiny:
    return tiny(case)


def told(*pieces: tuple[int, ...]) -> list[Told]:
    """One sequence a slot, each beginning two rounds after the one before: prompts and decoding rows mix."""
    generator = torch.Generator().manual_seed(5)
    return [
        Told(torch.randint(3, 97, (sum(one),), generator=generator), one, slot, begins=2 * slot)
        for slot, one in enumerate(pieces)
    ]


@pytest.mark.parametrize("cut", SPLITS)
@pytest.mark.parametrize("case", sorted(CASES))
def test_float32_as_transformers_is(case: str, cut: tuple[int, ...]) -> None:
    sequences = told(WHOLE, CHUNKS, (3, 1, 1, 1, 1, 1))
    theirs = expected(model(case).reference, sequences)
    for rows in (1, 4):  # both layouts of weights
        assert worst(Split(model(case), cut, torch.float32, rows).run(sequences), theirs) < FLOAT32


@pytest.mark.parametrize("case", sorted(CASES))
def test_float64_with_transformers_made_float64_throughout(case: str) -> None:
    sequences = told(WHOLE, CHUNKS, (3, 1, 1, 1, 1, 1))
    fresh = tiny(case)
    with float64_reference(fresh.reference) as reference:
        theirs = expected(reference, sequences)
    for cut in SPLITS:
        assert worst(Split(fresh, cut, torch.float64).run(sequences), theirs) < FLOAT64


pieces = st.lists(st.sampled_from((1, 1, 2, 3, 8, 16)), min_size=1, max_size=6).map(tuple)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=st.sampled_from(sorted(CASES)),
    cut=st.sets(st.sampled_from((1, 2))).map(sorted),
    work=st.lists(pieces, min_size=1, max_size=4),
    rows=st.sampled_from((1, 4)),
)
def test_any_cut_any_chunks_any_company(case: str, cut: list[int], work: list[tuple[int, ...]], rows: int) -> None:
    sequences = told(*work)
    theirs = expected(model(case).reference, sequences)
    assert worst(Split(model(case), cut, torch.float32, rows).run(sequences), theirs) < FLOAT32


def test_bfloat16_stays_near_float32() -> None:
    sequences = told(WHOLE, CHUNKS)
    theirs = Split(model("llama"), (), torch.float32).run(sequences)
    ours = Split(model("llama"), (1,), torch.bfloat16).run(sequences)
    assert all(logits.dtype == torch.float32 for logits in ours.values())
    assert worst(ours, theirs) < 0.05


def test_a_causal_mask_off_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    true_mask = attention._mask
    monkeypatch.setattr(attention, "_mask", lambda places, *rest: true_mask(places - 1, *rest))
    sequences = told(CHUNKS)
    assert worst(Split(model("llama"), (), torch.float32).run(sequences), _theirs("llama", sequences)) > 100 * FLOAT32


def test_a_window_off_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    true_mask = attention._mask
    monkeypatch.setattr(
        attention, "_mask", lambda places, key, end, window, like: true_mask(places, key, end, window + 1, like)
    )
    sequences = told(WHOLE)
    ours = Split(model("mistral-window"), (), torch.float32).run(sequences)
    assert worst(ours, _theirs("mistral-window", sequences)) > 100 * FLOAT32


def test_unpaired_rotations_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "interleave", lambda rows, head_dim, dims: rows)
    sequences = told(WHOLE)
    assert worst(Split(model("llama"), (), torch.float32).run(sequences), _theirs("llama", sequences)) > 100 * FLOAT32


def _theirs(case: str, sequences: list[Told]) -> dict[tuple[int, int], torch.Tensor]:
    return expected(model(case).reference, sequences)
