"""What a position needs: states and activations in flight, counted by hand for a small pipeline."""

from __future__ import annotations

import pytest

from plait.costs.activations import layer_kept_bytes
from plait.costs.operations import Work
from plait.costs.shares import whole
from plait.costs.states import RankParameters, recipe_named
from plait.costs.training_memory import LayerBytes, position_bytes
from plait.plans.split import Split, TrainingSetup
from plait.validator.published import Shape, gpt

SPEC = gpt(Shape(hidden=256, heads=8, layers=8, sequence=128, vocab=1000))
WORK = Work(128.0, 128 * 128.0, whole(SPEC), fused=False, dropout=True)
LAYER = layer_kept_bytes(SPEC, 0, WORK)
RECIPE = recipe_named("mixed")
CUT = ((0, 2), (2, 4), (4, 6), (6, 8))
PARAMETERS = [RankParameters(1000 * (1 + position), 0) for position in range(4)]


def bytes_of(setup: TrainingSetup, cut: tuple[tuple[int, int], ...] = CUT) -> tuple[int, ...]:
    return position_bytes(setup, cut, LayerBytes(SPEC, lambda layer: WORK, setup.recompute), PARAMETERS, RECIPE)


def test_one_micro_batch_more_for_every_position_before_the_last() -> None:
    setup = TrainingSetup(Split(pp=4), "1f1b", 1, 8, fused_attention=False)
    layers = LayerBytes(SPEC, lambda layer: WORK, "none")
    expected = [
        16 * 1000 * (1 + position) + (4 - position) * (2 * LAYER + (layers.first if position == 0 else 0))
        for position in range(4)
    ]
    expected[3] += layers.last
    assert bytes_of(setup) == pytest.approx(expected, abs=1)


def test_gpipe_holds_them_all() -> None:
    gpipe, plain = (
        bytes_of(TrainingSetup(Split(pp=4), schedule, 1, 16, fused_attention=False)) for schedule in ("gpipe", "1f1b")
    )
    assert gpipe[1] - plain[1] == pytest.approx((16 - 3) * 2 * LAYER, abs=1)


@pytest.mark.parametrize(("schedule", "count"), [("gpipe", 16), ("1f1b", 1), ("zb-h1", 4), ("zb-h2", 7)])
def test_logits_lie_there_until_their_backward(schedule: str, count: int) -> None:
    """GPipe's last stage holds those of all 16 micro-batches; a W that waits, those of as many as it holds."""
    layers = LayerBytes(SPEC, lambda layer: WORK, "none")
    found = bytes_of(TrainingSetup(Split(pp=4), schedule, 1, 16, fused_attention=False))  # type: ignore[arg-type]
    assert found[3] == pytest.approx(16 * 4000 + count * (2 * LAYER + layers.last), abs=1)
    assert layers.last > 4 * 128 * 1000


def test_what_the_last_stage_leaves_until_each_half_of_its_backward() -> None:
    """The logits' memory holds their gradient, which W needs as well; the norm's input is free after I."""
    layers = LayerBytes(SPEC, lambda layer: WORK, "none")
    whole_, halves = (layers.held((6, 8), split=split) for split in (False, True))
    assert whole_.total_bytes == halves.total_bytes == round(2 * LAYER + layers.last)
    assert whole_.until_weight_bytes == 0
    assert halves.until_weight_bytes == round(layers.half((6, 8)) + layers.last_half)
    assert layers.last - layers.last_half == 128 * 256 * 2
    assert layers.held((4, 6), split=False).total_bytes == round(2 * LAYER)


def test_a_v_puts_both_ends_on_the_first_position() -> None:
    layers = LayerBytes(SPEC, lambda layer: WORK, "none")
    cut = tuple((layer, layer + 1) for layer in range(8))
    for folded, head in ((True, 0), (False, 3)):
        found = layers.positions(4, folded, cut)
        assert [last for _, last in found] == [layers.last if position == head else 0 for position in range(4)]
        assert found[0][0] == pytest.approx(LAYER + layers.first / 2)


def test_full_recompute_keeps_inputs_and_works_in_one_layer() -> None:
    none, full = (LayerBytes(SPEC, lambda layer: WORK, how) for how in ("none", "full"))  # type: ignore[arg-type]
    assert full.stage((2, 4)) == 2 * 128 * 256 * 2
    assert none.recomputed == 0
    assert full.recomputed == pytest.approx(LAYER - 128 * 256 * 2)
    assert 0 < none.half((0, 4)) == 2 * none.half((0, 2))


def test_zero_shards_states_alone() -> None:
    whole_, sharded = (
        bytes_of(TrainingSetup(Split(dp=4, pp=4), "1f1b", 1, 8, zero=zero, fused_attention=False)) for zero in (0, 1)
    )
    assert [a - b for a, b in zip(whole_, sharded, strict=True)] == [
        pytest.approx(parameters.dense * 12 * 3 / 4, abs=1) for parameters in PARAMETERS
    ]
