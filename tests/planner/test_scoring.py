"""The closed form and the replay hold each other: equal where both apply."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.planner.placement import devices_in_order, training_layout
from plait.planner.scoring import closed, simulated
from plait.planner.step_times import Phases, step_seconds
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.schedules.training import compute_order
from plait.simulator.step import forecast_step
from plait.simulator.waves import even_run, replay
from plait.spec.job import TrainingJob

from .test_grid import costs
from .training_clusters import cluster, model

WAYS = [
    ("layerwise", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1),
    ("zb-v", 2), ("dualpipe-v", 2),
]  # fmt: skip


def replayed(way: tuple[str, int], p: int, m: int, phases: tuple[float, float, float], hop_s: float) -> float:
    schedule, virtual = way
    order = compute_order(schedule, p, virtual, m)
    return replay([even_run(order, *(one / virtual for one in phases), hop_s)])[0].makespan_s


def by_form(way: tuple[str, int], p: int, m: int, phases: tuple[float, float, float], hop_s: float) -> float:
    mean = Phases(*map(np.float64, phases))
    found = step_seconds(way[0], np.float64(p), way[1], np.float64(m), mean.total, mean, np.float64(hop_s))
    return float(found)


@given(
    st.sampled_from(WAYS),
    st.integers(2, 6),
    st.integers(2, 5),
    st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.floats(0.5, 2.0)),
)
def test_equal_stages_and_free_links(
    way: tuple[str, int], p: int, turns: int, phases: tuple[float, float, float]
) -> None:
    assert by_form(way, p, turns * p, phases, 0.0) == pytest.approx(replayed(way, p, turns * p, phases, 0.0))


@given(st.sampled_from(WAYS), st.integers(2, 6), st.integers(2, 5), st.floats(0.0, 0.02))
def test_equal_stages_and_short_messages(way: tuple[str, int], p: int, turns: int, hop_s: float) -> None:
    """Forward, and both halves of the backward, equally long, as zero-bubble schedules assume."""
    if way[0] == "layerwise" or (way[0] == "dualpipe-v" and p > 2):
        # layer-wise counts every message, DualPipe-V some more the longer they are
        return
    phases = (1.0, 1.0, 1.0)
    assert by_form(way, p, turns * p, phases, hop_s) == pytest.approx(replayed(way, p, turns * p, phases, hop_s))


@pytest.mark.parametrize("way", WAYS)
def test_a_model_without_ends(way: tuple[str, int]) -> None:
    """Stages are equal but for a tiny embedding and head: the closed form is within a hundredth of the replay."""
    schedule, virtual = way
    counting = costs(model(layers=12, vocab=16), cluster(1, 4), TrainingJob(24, 512))
    one = closed(counting, TrainingSetup(Split(pp=2, tp=2), schedule, 1, 24, virtual))
    (again,) = simulated(counting, [one])
    assert again.simulated
    assert again.step_s == pytest.approx(one.step_s, rel=0.02 if schedule == "dualpipe-v" else 0.01)


@pytest.mark.parametrize("way", WAYS)
def test_parts_add_up_to_the_step(way: tuple[str, int]) -> None:
    counting = costs(model(layers=12, vocab=50_000), cluster(2, 4, between=1e9), TrainingJob(32, 512))
    setup = TrainingSetup(Split(dp=2, pp=2, tp=2), way[0], 1, 16, way[1], zero=1)
    for one in (closed(counting, setup), *simulated(counting, [closed(counting, setup)])):
        figures = one.figures
        assert figures["compute_s"] + figures["transfer_s"] + figures["wait_s"] == pytest.approx(figures["step_s"])
        assert min(figures[key] for key in ("compute_s", "transfer_s", "wait_s")) >= 0
        assert figures["tokens_per_s"] == pytest.approx(32 * 512 / figures["step_s"])
        assert 0 < figures["bubble"] < 1
        assert 0 < figures["mfu"] < 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("between", [1e8, 1e9, 25e9])
def test_the_replay_has_the_bytes_of_the_simulator_and_never_more_seconds(
    way: tuple[str, int], zero: int, between: float
) -> None:
    """Where links are fast the seconds are the simulator's too, but for a hundredth that messages wait for others."""
    machines = cluster(2, 4, between=between)
    counting = costs(model(layers=12, vocab=50_000), machines, TrainingJob(32, 512))
    setup = TrainingSetup(Split(dp=2, pp=2, tp=2), way[0], 1, 16, way[1], zero=zero)
    (one,) = simulated(counting, [closed(counting, setup)])
    names = devices_in_order(machines)
    layout = training_layout(setup, one.cut, names, "bfloat16", [machines.device(name).host for name in names])
    found = forecast_step(TrainingPlan("tiny", layout, setup, 32, 512), counting.spec, machines)
    assert one.figures["comm_bytes"] == found.predicted["comm_bytes"]
    assert one.figures["peak_bytes"] == found.predicted["peak_bytes"]
    assert one.figures["compute_s"] == pytest.approx(found.predicted["compute_s"])
    assert one.step_s <= found.predicted["step_s"] * (1 + 1e-9)
    if between > 1e10:
        assert one.step_s == pytest.approx(found.predicted["step_s"], rel=0.01)


def test_a_busy_link_decides() -> None:
    """A message of 512 × 1024 × 2 bytes at 1 MB/s takes 1.05 s, far more than any stage: 16 of them in a row."""
    counting = costs(model(), cluster(2, 1, between=1e6), TrainingJob(16, 512))
    one = closed(counting, TrainingSetup(Split(pp=2), "gpipe", 1, 16))
    message_s = 512 * 1024 * 2 / (1e6 * counting.profile.between_share)
    assert one.step_s > 16 * message_s
    assert one.figures["transfer_s"] > 0.9 * one.step_s
