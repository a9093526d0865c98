"""A generation's figures where a stage has several ranks."""

from __future__ import annotations

import pytest

from plait.costs.protocol import FixedCosts
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.schedules.forecast import forecast_rounds
from plait.simulator.simulate import simulate
from plait.spec.presets import model_preset
from plait.timeline.metrics import generation_metrics


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_tensor_groups_tokens_count_once(stages: int, width: int) -> None:
    """Each stage takes 1 s a forward: a token takes as many seconds as there are stages, whatever the width."""
    cuts = [(0, 12)] if stages == 1 else [(0, 6), (6, 12)]
    made = tuple(Stage(cut, tuple(range(i * width, (i + 1) * width))) for i, cut in enumerate(cuts))
    plan = Plan("gpt2", Layout({"pp": stages, "tp": width}, made, 4), "layerwise", 1, 64, 128, 1)
    rounds = forecast_rounds(plan, [64], 5)
    timeline = simulate(plan.layout, rounds, FixedCosts({0: 1.0, 1: 1.0}), model_preset("gpt2"))
    found = generation_metrics(timeline, rounds)
    assert found["time_per_token_s"] == pytest.approx(stages)
    assert found["decode_tokens_per_s"] == pytest.approx(1 / stages)
    assert found["tokens_per_s"] == pytest.approx(1 / stages)
