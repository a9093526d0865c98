"""Runs that the report's tests draw: two stages, pipelined, and whatever hypothesis thinks of."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.plans.notation import parse_action
from plait.plans.round import MicroBatch, Row
from plait.timeline.record import RoundRecipe, RunRecord, StageSummary
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

sys.path.insert(0, str(Path(__file__).parent))
MS = 1e-3


def pipelined(source: str, forward_ms: tuple[float, float] = (1.0, 1.0), rounds: int = 4) -> Timeline:
    """Two stages, two micro-batches in flight, messages that take no time.

    stage 0  F0 F1 F0 F1 ··
    stage 1  ·· F0 F1 F0 F1
    """
    spans: list[Span] = []
    free = [0.0, 0.0]
    answered = {0: 0.0, 1: 0.0}
    for number in range(rounds):
        for micro_batch in (0, 1):
            message = answered[micro_batch]
            for stage in (0, 1):
                if stage == 1 and message > free[1]:
                    receive = parse_action(f"{number}:1RF{micro_batch}")
                    wait = Part("wait", free[1], message)
                    spans.append(Span(0, receive, 1, free[1], message, 0, (wait,)))
                begin = max(free[stage], message)
                message = free[stage] = begin + forward_ms[stage] * MS
                spans.append(Span(0, parse_action(f"{number}:{stage}F{micro_batch}"), stage, begin, message))
                if stage == 1:
                    spans.append(Span(0, parse_action(f"{number}:1ST{micro_batch}"), 1, message, message, 8))
                    # a receive that takes no time, so that the token is seen to come back
                    spans.append(Span(0, parse_action(f"{number}:0RT{micro_batch}"), 0, message, message))
                else:
                    spans.append(Span(0, parse_action(f"{number}:0SF{micro_batch}"), 0, message, message, 1024))
            answered[micro_batch] = message
    return Timeline(source, tuple(sorted(spans, key=lambda span: (span.start_s, span.end_s))))


def recipes(rounds: int) -> tuple[RoundRecipe, ...]:
    """One request a micro-batch: a prompt of 64 positions, then a token a round."""
    return tuple(
        RoundRecipe(
            number,
            tuple(
                MicroBatch((Row(i, i, 0 if number == 0 else 63 + number, 64 if number == 0 else 1, True),))
                for i in (0, 1)
            ),
        )
        for number in range(rounds)
    )


@pytest.fixture
def make_timeline() -> Callable[..., Timeline]:
    return pipelined


@pytest.fixture
def record() -> RunRecord:
    """Stage 1 was slower than predicted: 1.5 ms instead of 1 ms."""
    return RunRecord(
        plan="",
        stages=(
            StageSummary(0, (0,), (0, 15), "float32", "float32", 269 * 2**20, 488 * 2**20),
            StageSummary(1, (1,), (15, 30), "float32"),
        ),
        model={"name": "tiny", "layers": 30},
        rounds=recipes(4),
        predicted=pipelined("predicted"),
        measured=pipelined("measured", (1.0, 1.5)),
    )
