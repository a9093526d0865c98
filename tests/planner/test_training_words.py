from __future__ import annotations

import pytest

from plait.planner.training_words import Links, split_words, why_it_loses, why_it_wins
from plait.plans.split import Split, TrainingSetup

LINKS = Links(per_host=8, hosts=8, within=300e9, between=25e9, devices=64)
CHOSEN = TrainingSetup(Split(dp=2, pp=4, tp=8), "1f1b", 1, 32, zero=1)


def figures(compute_s: float, transfer_s: float, wait_s: float, comm_bytes: float = 1e9) -> dict[str, float]:
    step_s = compute_s + transfer_s + wait_s
    return {
        "step_s": step_s,
        "compute_s": compute_s,
        "transfer_s": transfer_s,
        "wait_s": wait_s,
        "mfu": 0.5,
        "bubble": 1 - compute_s / step_s,
        "comm_bytes": comm_bytes,
    }


BEST = figures(8.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (CHOSEN, "dp 2 × pp 4 × tp 8, 1f1b, 32 micro-batches of 1, ZeRO-1"),
        (TrainingSetup(Split(), "1f1b", 4, 1), "one device, 1 micro-batch of 4"),
        (
            TrainingSetup(Split(ep=8, pp=2), "interleaved", 2, 8, virtual=3, recompute="full"),
            "ep 8 × pp 2, interleaved of 3, 8 micro-batches of 2, full recompute",
        ),
    ],
)
def test_setups(setup: TrainingSetup, words: str) -> None:
    assert split_words(setup) == words


def test_why_it_wins() -> None:
    assert why_it_wins(CHOSEN, BEST, LINKS) == (
        "dp 2 × pp 4 × tp 8, 1f1b, 32 micro-batches of 1, ZeRO-1: predicted 10 s a step, MFU 50 %; tensor groups of 8 "
        "stay inside a host (300 GB/s); the pipeline of 4 goes across hosts (25 GB/s); data over 2 around them"
    )


@pytest.mark.parametrize(
    ("setup", "other", "words"),
    [
        (
            TrainingSetup(Split(dp=2, pp=2, tp=16), "1f1b", 1, 32, zero=1),
            figures(8.0, 6.0, 1.0, 4e9),
            "tensor groups of 16 cross hosts: 25 GB/s instead of 300 GB/s: "
            "+5 s a step (compute +0 s, transfer +5 s, wait +0 s)",
        ),
        (
            TrainingSetup(Split(dp=2, pp=4, tp=8), "gpipe", 2, 16, recompute="full", zero=1),
            figures(11.0, 1.0, 2.5),
            "full recompute; gpipe over 4 positions waits 17.2% of the step and not 10.0% (16 micro-batches): "
            "+4.5 s a step (compute +3 s, transfer +0 s, wait +1.5 s)",
        ),
        (
            TrainingSetup(Split(dp=64), "1f1b", 1, 1, zero=1),
            figures(8.0, 4.0, 0.0, 3e9),
            "a device sends 44.7 MiB a step, 3 × as much: +2 s a step (compute +0 s, transfer +3 s, wait -1 s)",
        ),
        (
            TrainingSetup(Split(), "1f1b", 1, 64),
            figures(500.0, 0.0, 0.0, 0.0),
            "it uses 1 of the 64 devices: +490 s a step (compute +492 s, transfer -1 s, wait -1 s)",
        ),
        (
            TrainingSetup(Split(dp=2, pp=4, tp=8), "1f1b", 1, 32),
            figures(8.5, 1.0, 1.0),
            "every replica does the whole optimizer step (ZeRO-0): "
            "+500 ms a step (compute +500 ms, transfer +0 s, wait +0 s)",
        ),
    ],
)
def test_why_it_loses(setup: TrainingSetup, other: dict[str, float], words: str) -> None:
    assert why_it_loses(CHOSEN, BEST, setup, other, LINKS) == words


def test_as_fast() -> None:
    assert why_it_loses(CHOSEN, BEST, CHOSEN, BEST, LINKS) == (
        "as fast, but on no fewer devices (compute +0 s, transfer +0 s, wait +0 s)"
    )
