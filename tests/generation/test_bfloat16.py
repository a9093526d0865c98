"""bfloat16 does not treat rows alone: tokens may differ, but only where the two best logits are within rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from plait.generation import rank as rank_module
from plait.generation.answer import Answer, Request, answer
from plait.generation.launch import ThreadRanks
from plait.generation.opened import Opened
from plait.plans.plan import Plan
from tests.generation.splits import split

QUESTIONS = (
    "What is gravity?",
    "What is the capital of France?",
    "Name three rivers.",
    "Why is the sky blue?",
    "Write a line about the sea.",
    "How many legs has a spider?",
)
TOKENS = 20


@dataclass(frozen=True)
class Compared:
    """Two runs, token by token as far as both drew the same before: how far off, and where another token was drawn.

    `gaps`: at each such place, how far apart the reference's two best logits were.
    """

    error: float
    positions: int
    gaps: tuple[float, ...]


def run(plan: Plan, demo: Opened) -> Sequence[Answer]:
    requests = [Request(demo.encode(text), TOKENS, demo.stop, logits=True) for text in QUESTIONS]
    return answer(plan, demo.index, requests, ThreadRanks).answers


def logits(one: Answer, position: int) -> npt.NDArray[np.float32]:
    return np.frombuffer(one.logits[position], np.float32)


def compare(answers: Sequence[Answer], references: Sequence[Answer]) -> Compared:
    errors, gaps = [], []
    for mine, reference in zip(answers, references, strict=True):
        for position, (a, b) in enumerate(zip(mine.tokens, reference.tokens, strict=False)):
            wanted = logits(reference, position)
            errors.append(float(np.abs(wanted - logits(mine, position)).max()))
            if a != b:
                second, best = np.sort(wanted)[-2:]
                gaps.append(float(best - second))
                break  # what follows are answers to different texts
    return Compared(max(errors), len(errors), tuple(gaps))


def require_only_rounding(compared: Compared, rounding: float) -> None:
    """Both the logits and the gaps at every other token are within the rounding, measured apart from this run."""
    print(f"{len(compared.gaps)} of {compared.positions} tokens differ; gaps {compared.gaps}, rounding {rounding:.3g}")
    assert compared.error <= 2 * rounding
    assert all(gap <= 2 * rounding for gap in compared.gaps)


def one_process(dtype: str) -> Plan:
    return split(30, slots=1, context=128, dtypes=dtype, chunk=128)


@pytest.fixture(scope="module")
def alone(demo: Opened) -> Sequence[Answer]:
    """One bfloat16 process, one request at a time."""
    return run(one_process("bfloat16"), demo)


@pytest.fixture(scope="module")
def rounding(demo: Opened, alone: Sequence[Answer]) -> float:
    """How far one bfloat16 process is off one float32 process."""
    return compare(alone, run(one_process("float32"), demo)).error


@pytest.mark.parametrize(
    "plan",
    [
        split(30, slots=6, context=128, dtypes="bfloat16", chunk=128),
        split(15, 15, slots=6, context=128, dtypes="bfloat16", micro_batches=2),
        split(19, 7, 4, slots=4, context=128, dtypes="bfloat16", micro_batches=3),
    ],
    ids=["6 users", "2 stages, 2 micro-batches", "3 stages, 3 micro-batches"],
)
def test_tokens_differ_only_within_rounding(plan: Plan, demo: Opened, alone: Sequence[Answer], rounding: float) -> None:
    compared = compare(run(plan, demo), alone)
    assert compared.positions > 40
    require_only_rounding(compared, rounding)


def test_one_request_alone_gives_the_same_bits_on_any_split(demo: Opened, alone: Sequence[Answer]) -> None:
    """The same shapes go through the same kernels, so not even bfloat16 moves."""
    answers = run(split(11, 19, slots=1, context=128, dtypes="bfloat16", chunk=128), demo)
    assert [one.tokens for one in answers] == [one.tokens for one in alone]
    assert [one.logits for one in answers] == [one.logits for one in alone]


def test_a_faulty_stage_is_not_taken_for_rounding(
    demo: Opened, alone: Sequence[Answer], rounding: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rank_module.load_stage

    def faulty(index, first, end, dtype, progress=None, shard=None):  # type: ignore[no-untyped-def]
        tensors = original(index, first, end, dtype, progress, shard)
        if first > 0:
            tensors["layers.20.down.weight"] *= 1.5
        return tensors

    monkeypatch.setattr(rank_module, "load_stage", faulty)
    compared = compare(run(split(15, 15, slots=1, context=128, dtypes="bfloat16", chunk=128), demo), alone)
    with pytest.raises(AssertionError):
        require_only_rounding(compared, rounding)
