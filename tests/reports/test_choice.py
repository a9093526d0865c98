"""The planner's page: everything of the answer stands on it, in lines that fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.planner.result import BreakEven, Candidate, Choice, DeviceMemory, Rejected
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.reports.choice import choice_page, figure, list_page
from plait.reports.marks import ASCII

GIB = 2**30
PLAN = Plan("m", Layout({"pp": 2}, (Stage((0, 7), (0,)), Stage((7, 10), (1,)))), "layerwise", 1, 64, 768, 1)
CHOSEN = Candidate(
    kind="pipeline",
    split=Split(pp=2),
    cut=((0, 7), (7, 10)),
    devices=(("fast",), ("slow",)),
    schedule="layerwise",
    micro_batches=1,
    recompute="none",
    zero=0,
    predicted={
        "time_per_token_s": 0.0407,
        "ttft_s": 1.25,
        "tokens_per_s": 24.57,
        "bubble": 0.5,
        "comm_bytes": 2048.0,
        "compute_s": 0.04,
        "transfer_s": 0.0005,
        "wait_s": 0.0002,
    },
    memory=(DeviceMemory("fast", 20 * GIB, 24 * GIB), DeviceMemory("slow", 9 * GIB, 12 * GIB)),
    plan=PLAN,
    simulated=True,
    note="not calibrated: the devices' figures as they are",
)
TENSOR = replace(
    CHOSEN,
    kind="tensor",
    split=Split(tp=2),
    cut=((0, 10),),
    devices=(("fast", "slow"),),
    predicted={"time_per_token_s": 0.0631, "compute_s": 0.03, "transfer_s": 0.033, "wait_s": 0.0, "bubble": 0.52},
    simulated=False,
    loses="160 all-reduces of 16 KB a token cross the link: 33 ms more than the pipeline's hand-over",
)
SLOWER = replace(CHOSEN, predicted={**CHOSEN.predicted, "time_per_token_s": 0.05})
CHOICE = Choice(
    "latency",
    CHOSEN,
    (CHOSEN, SLOWER, TENSOR),
    (Rejected({"dp": 1, "pp": 1, "tp": 1}, 2, "memory", 39.5 * GIB, 24 * GIB),),
    (BreakEven("tensor", "bandwidth", 0.4e9, "tensor wins from 3.1 Gb/s on"),),
    "both are needed to hold the model",
)


def lines(choice: Choice = CHOICE, width: int = 120) -> list[str]:
    return choice_page(choice, width).plain.splitlines()


def test_the_whole_page() -> None:
    assert lines() == [
        "Chosen: pipeline, 2 devices",
        "  split             pp 2",
        "  schedule          layerwise, 1 micro-batch",
        "  time per token    40.7 ms",
        "  of which          compute 40 ms, transfer 500 µs, wait 200 µs",
        "  first token after 1.25 s",
        "  tokens            24.6 tokens/s",
        "  bubble            50.0 %",
        "  bytes sent        2.0 KiB a token, by all devices",
        "  why               both are needed to hold the model",
        "",
        "stage  layers      devices  memory needed",
        "0      0 to 6 (7)  fast     20.0 GiB of 24.0 GiB",
        "1      7 to 9 (3)  slow     9.0 GiB of 12.0 GiB",
        "",
        "The best of every other kind   a token   compute  transfer      wait    bubble",
        "tensor                         63.1 ms     30 ms     33 ms         0    52.0 %",
        "    tp 2: 160 all-reduces of 16 KB a token cross the link: 33 ms more than the pipeline's hand-over",
        "",
        "Cannot be",
        "  one device (2 ways): memory (need 39.5 GiB, have 24.0 GiB)",
        "",
        "Where the answer changes",
        "  tensor wins from 3.1 Gb/s on",
        "",
        "About the figures",
        "  not calibrated: the devices' figures as they are",
        "  2 of 3 plans were simulated, the others are closed forms",
    ]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_lines_fit_and_lose_no_word(width: int) -> None:
    folded = lines(width=width)
    assert max(map(len, folded)) <= width
    assert " ".join(" ".join(folded).split()) == " ".join(" ".join(lines()).split())


def test_ascii_where_the_terminal_has_no_more() -> None:
    page = choice_page(CHOICE, 80, ASCII).plain
    assert page.isascii()
    assert "500 us" in page


def test_equal_neighbours_of_a_long_pipeline_share_a_line() -> None:
    cut = tuple((2 * stage, 2 * stage + 2) for stage in range(64))
    names = tuple(tuple(f"node-{stage}.{rank}" for rank in range(8)) for stage in range(64))
    memory = tuple(DeviceMemory(each[0], (5 if stage else 6) * GIB, 80 * GIB) for stage, each in enumerate(names))
    setup = TrainingSetup(Split(dp=1, pp=64, tp=8), "interleaved", 1, 512, 2, "full", 1, sequence_split=True)
    plan = TrainingPlan("m", Layout({"pp": 64, "tp": 8}, ()), setup, 512, 2048)
    long = replace(CHOSEN, cut=cut, devices=names, memory=memory, plan=plan, split=setup.split, schedule="interleaved")
    long = replace(long, micro_batches=512, recompute="full", zero=1, predicted={"step_s": 42.0, "mfu": 0.5})
    page = lines(replace(CHOICE, objective="step", chosen=long, candidates=(long,)))
    assert page[1:5] == [
        "  split             pp 64 × tp 8",
        "  schedule          interleaved, 512 micro-batches of 1, 2 stages a position, full recompute, ZeRO-1, "
        "sequence split",
        "  time of a step    42 s",
        "  MFU               50.0 %",
    ]
    begin = page.index("") + 1
    assert [" ".join(line.split()) for line in page[begin : begin + 3]] == [
        "stage layers devices memory needed",
        "0 0 to 1 (2) node-0.0 … node-0.7 (8) 6.0 GiB of 80.0 GiB",
        "1 to 63 2 to 127 (2 each) node-1.0 … node-63.7 (504) 5.0 GiB of 80.0 GiB",
    ]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("step_s", 0.5, "500 ms"),
        ("wait_s", 1e-18, "0 µs"),
        ("mfu", 0.4321, "43.2 %"),
        ("tokens_per_s", 12345.6, "12,346 tokens/s"),
        ("decode_tokens_per_s", 3.14159, "3.14 tokens/s"),
        ("peak_bytes", 3 * GIB, "3.0 GiB"),
    ],
)
def test_figures(key: str, value: float, text: str) -> None:
    assert figure(key, value) == text


def test_of_many_ways_that_cannot_be_whole_kinds_are_named_first() -> None:
    """The candidates are a pipeline and a tensor group: of their kinds only the nearest of all are named."""
    pipelines = [Rejected({"pp": pp}, 10 * pp, "memory", (44 - pp) * GIB, 24 * GIB) for pp in range(1, 20)]
    experts = [Rejected({"pp": 1, "ep": ep}, 1, "memory", (200 - ep) * GIB, 24 * GIB) for ep in (2, 4)]
    page = lines(replace(CHOICE, rejected=(*pipelines, *experts)))
    begin = page.index("Cannot be")
    assert page[begin + 1 : begin + 6] == [
        "  one device (10 ways): memory (need 43.0 GiB, have 24.0 GiB)",
        "  ep 4 (1 way): memory (need 196.0 GiB, have 24.0 GiB)",
        "  pp 19 (190 ways): memory (need 25.0 GiB, have 24.0 GiB)",
        "  pp 18 (180 ways): memory (need 26.0 GiB, have 24.0 GiB)",
        "  and 1,521 ways in 17 groups more (--json has all)",
    ]


def test_seconds_that_are_nothing_beside_the_whole() -> None:
    """54.7 ns of 40.7 ms are no finding."""
    spent = replace(CHOSEN, predicted={**CHOSEN.predicted, "transfer_s": 5.47e-8, "wait_s": -1e-18})
    assert "  of which          compute 40 ms, transfer 0, wait 0" in lines(replace(CHOICE, chosen=spent))


def test_why_it_loses_says_no_column_again() -> None:
    for detail in (" (of a rank's time a token: compute -1 ms, transfer +0, wait +3 s)", " (compute +1 s, wait +0 s)"):
        loses = replace(TENSOR, loses=f"slow links (1 Gb/s) lose{detail}")
        assert "    tp 2: slow links (1 Gb/s) lose" in lines(replace(CHOICE, candidates=(CHOSEN, loses)))


def test_a_few_break_evens_of_different_kinds() -> None:
    texts = ["tensor, bandwidth", "tensor, latency", "tensor, memory", "data, bandwidth", "pipeline, latency"]
    found = tuple(BreakEven(text.split(",")[0], "bandwidth", 1.0, text) for text in texts)
    page = lines(replace(CHOICE, break_even=found))
    begin = page.index("Where the answer changes")
    assert page[begin + 1 : begin + 5] == [
        "  tensor, bandwidth",
        "  data, bandwidth",
        "  pipeline, latency",
        "  and 2 more (--json has all)",
    ]


def test_a_reason_with_its_figures_is_told_once() -> None:
    told = Rejected({"tp": 2}, 1, "not enough memory: 25.0 GiB are needed, all have 24.0 GiB", 25 * GIB, 24 * GIB)
    page = lines(replace(CHOICE, rejected=(told,)))
    assert "  tp 2 (1 way): not enough memory: 25.0 GiB are needed, all have 24.0 GiB" in page


def test_what_is_short_is_said_where_need_and_have_read_alike() -> None:
    reason = "memory: a device would need 24.0 GiB to 99.0 GiB and has 24.0 GiB"
    near = Rejected({"pp": 4, "tp": 2}, 9, reason, 24 * GIB + 2**20, 24 * GIB)
    assert "  pp 4 × tp 2 (9 ways): a device would need at least 24.0 GiB, 1.0 MiB more than it has" in lines(
        replace(CHOICE, rejected=(near,))
    )


def test_bytes_of_several_users() -> None:
    several = replace(CHOSEN, plan=replace(PLAN, slots=3))
    assert "  bytes sent        2.0 KiB for a token of every user, by all devices" in lines(
        replace(CHOICE, chosen=several)
    )


def test_the_list_of_presets() -> None:
    assert list_page({"models": {"a": "one", "bcd": "two"}, "links": {"e": "three"}}) == (
        "models:\n  a    one\n  bcd  two\n\nlinks:\n  e  three"
    )
