"""Parts, recompute, frozen tensors, masters: whatever a stage is told, it learns what one process without it learns."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from random import Random
from types import MappingProxyType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.nn.training.linear import Products
from plait.nn.training.options import StageOptions
from plait.nn.training.parameters import Parameters
from plait.nn.training.stage import TrainingStage
from plait.plans.split import RECOMPUTE
from plait.spec.shards import make_shards, shard_tensors
from plait.spec.tensors import stage_tensors

from .training_ranks import bound, group_error, model
from .training_steps import PLAIN, RATE, Learner, piece_of, steps, told

FLOAT64, FLOAT32, BFLOAT16 = torch.float64, torch.float32, torch.bfloat16
FAMILIES = ("gpt2", "llama", "llama-9-3-tied", "llama-bias", "mistral-window", "olmo2", "phi3-partial", "qwen3")
CUTS: Mapping[str, tuple[int, ...]] = MappingProxyType({"one stage": (), "two": (1,), "three": (1, 2)})


def some_names(case: str, tied: bool, share: float, seed: int = 0) -> frozenset[str]:
    names = sorted(stage_tensors(model(case, tied).spec, 0, 3))
    return frozenset(Random(seed).sample(names, round(share * len(names))))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=st.sampled_from(FAMILIES),
    tied=st.booleans(),
    tp=st.integers(1, 3),
    sequence=st.booleans(),
    dtype=st.sampled_from((FLOAT64, FLOAT64, FLOAT32)),
    shape=st.sampled_from(((1, 1), (2, 3), (3, 11))),
    cut=st.sampled_from(tuple(CUTS.values())),
    parts=st.integers(1, 3),
    recompute=st.sampled_from(RECOMPUTE),
    dropout=st.sampled_from((0.0, 0.1, 0.6)),
    frozen=st.sampled_from((0.0, 0.3, 0.8)),
    how=st.tuples(st.booleans(), st.booleans()),
)
def test_any_options_equal_one_process_without(
    case: str,
    tied: bool,
    tp: int,
    sequence: bool,
    dtype: torch.dtype,
    shape: tuple[int, int],
    cut: tuple[int, ...],
    parts: int,
    recompute: str,
    dropout: float,
    frozen: float,
    how: tuple[bool, bool],
) -> None:
    options = StageOptions(parts, recompute, dropout, 7, some_names(case, tied, frozen))  # type: ignore[arg-type]
    found = group_error(tp, case, tied, dtype, *shape, sequence, (), cut, options, *how)
    assert found < bound(case, tied, dtype, *shape, cut, options)


@pytest.mark.soak
@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("case", FAMILIES)
def test_every_family_with_all_options_equals_one_process(case: str, recompute: str, tp: int) -> None:
    first = FAMILIES.index(case) + tp + RECOMPUTE.index(recompute)  # type: ignore[arg-type]
    for number, cut in enumerate(CUTS.values(), first):
        sequence, tied = bool(number & 1), bool(number & 2)
        dtype = FLOAT32 if number % 3 == 0 else FLOAT64
        options = StageOptions(1 + number % 3, recompute, 0.1, number, some_names(case, tied, 0.3, number))  # type: ignore[arg-type]
        found = group_error(tp, case, tied, dtype, 2, 7, sequence, (), cut, options, number % 2 == 0, number % 3 == 0)
        assert found < bound(case, tied, dtype, 2, 7, cut, options)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("case", ["gpt2", "llama", "olmo2"])
def test_t13_recompute_draws_the_same_dropout_masks(case: str, cut: tuple[int, ...]) -> None:
    """OLMo-core #828: dropout 0.1, recompute on and off: equal to the bit."""
    learners = [
        Learner(model(case, False), FLOAT32, cut=cut, options=StageOptions(parts, recompute, 0.1))
        for parts in (1, 2)
        for recompute in RECOMPUTE
    ]
    for one in steps(2, 9):
        first, *others = [learner.step(one) for learner in learners]
        for other in others:
            assert first.loss == other.loss
            assert all(torch.equal(tensor, other.gradients[key]) for key, tensor in first.gradients.items())
            assert all(torch.equal(tensor, other.weights[key]) for key, tensor in first.weights.items())


# --- where everything lies -----------------------------------------------------------------------------------


def stages(case: str, tied: bool, cut: tuple[int, ...], options: StageOptions = PLAIN) -> list[TrainingStage]:
    return Learner(model(case, tied), FLOAT32, cut=cut, options=options).stages


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("tied", [False, True])
def test_parts_and_the_tied_block_cover_the_flat_storage(tied: bool, cut: tuple[int, ...], parts: int) -> None:
    for stage in stages("gpt2", tied, cut, StageOptions(parts)):
        ranges = [*stage.parts, *([stage.tied] if stage.tied else [])]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == len(stage.flat.weights) == len(stage.flat.gradients)
        assert all(one[1] == after[0] for one, after in pairwise(ranges))
        assert len(stage.parts) == min(parts, stage.end - stage.first)
        inside = sorted(stage.places.values())
        assert all(one[1] <= after[0] < one[1] + 16 for one, after in pairwise(inside))  # aligned, none overlap
        assert inside[-1][1] <= ranges[-1][1]


def part_of(stage: TrainingStage, name: str) -> int:
    first, end = stage.places[name]
    (found,) = [part for part, (start, stop) in enumerate(stage.parts) if start <= first and end <= stop]
    return found


def test_the_last_layers_and_the_head_are_part_0() -> None:
    (stage,) = stages("gpt2", False, (), StageOptions(2))
    expected = {"layers.0": 1, "layers.1": 0, "layers.2": 0, "norm.": 0, "head": 0, "embed": 1, "positions": 1}
    for name in stage.places:
        assert part_of(stage, name) == next(part for key, part in expected.items() if name.startswith(key)), name


@pytest.mark.parametrize(("tied", "cut"), [(True, (1,)), (True, (1, 2)), (True, ()), (False, (1,))])
def test_a_tied_embedding_stands_apart_only_where_the_other_end_is_elsewhere(tied: bool, cut: tuple[int, ...]) -> None:
    for stage in stages("llama", tied, cut):
        ends = (stage.first == 0) + (stage.end == 3)
        assert (stage.tied is not None) == (tied and ends == 1)
        if stage.tied is not None:
            assert stage.tied == stage.places["embed.weight"]


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_of_the_backward_touches_its_own_gradients_only(part: int) -> None:
    learner = Learner(model("llama-bias", False), FLOAT64, options=StageOptions(3))
    whole = Learner(model("llama-bias", False), FLOAT64).step([told(2, 5)])
    (stage,) = learner.stages
    stage.flat.gradients.fill_(7.0)
    stage.clear()
    (passed,) = learner.forward(*told(2, 5))
    for one in range(part + 1):
        stage.backward(passed, 1 / passed.valid if not one else None, one)
        stage.complete(one)
    done = stage.parts[part][1]
    assert (stage.flat.gradients[done:] == 7.0).all()
    for name, (_, end) in stage.places.items():
        if end <= done:
            assert torch.allclose(stage.gradients[name], whole.gradients[0, name], rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("case", ["llama-9-3-tied", "olmo2", "gpt2", "qwen3", "qwen2"])
def test_a_group_owns_every_parameter_once(case: str, tp: int, slow: bool) -> None:
    """Weights are numbered; what the ranks own, put together, is every number once."""
    made = model(case, False)
    counts = {name: tensor.numel() for name, tensor in made.weights(FLOAT64).items()}
    starts = dict(zip(counts, [0, *torch.tensor(list(counts.values())).cumsum(0).tolist()], strict=False))
    numbered = {
        name: torch.arange(start, start + counts[name], dtype=FLOAT64).view(made.tensors[name].shape)
        for name, start in starts.items()
    }
    owned = []
    for shard in make_shards(made.spec, tp, [1.0] + [3.0] * (tp - 1) if slow else []):
        pieces = shard_tensors(made.spec, 0, 3, shard)
        mine = {name: piece_of(numbered[name], piece) for name, piece in pieces.items()}
        parameters = Parameters(made.spec, 0, 3, mine, FLOAT64, shard, StageOptions(2))
        owned += [parameters.flat.weights[first:end] for first, end in parameters.owned]
        assert all(first < end for first, end in parameters.owned)
    assert torch.equal(torch.cat(owned).sort()[0], torch.arange(sum(counts.values()), dtype=FLOAT64))


# --- frozen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_frozen_tensors_keep_their_bits_and_have_no_gradient(recompute: str) -> None:
    made, frozen = (
        model("llama-bias", True),
        some_names("llama-bias", True, 0.5) | {"layers.1.k.weight", "layers.1.v.bias"},
    )
    learner = Learner(made, FLOAT32, options=StageOptions(recompute=recompute, frozen=frozen))  # type: ignore[arg-type]
    (stage,) = learner.stages
    for one in steps(2, 9):
        learner.step(one)
    assert stage.gradients.keys() == stage.places.keys() == stage.weights.keys() - frozen
    for name, weight in stage.weights.items():
        assert torch.equal(weight, made.tensors[name].float()) == (name in frozen), name
    owned = sum(end - first for first, end in stage.owned)
    assert owned == sum(weight.numel() for name, weight in stage.weights.items() if name not in frozen)


def test_products_of_frozen_weights_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    add = Products.add
    monkeypatch.setattr(Products, "add", lambda self, weight, *rest: (done.append(weight), add(self, weight, *rest)))
    frozen = {f"layers.{layer}.{name}.weight" for layer in (0, 2) for name in ("o", "gate", "up")}
    learner = Learner(model("llama", False), FLOAT64, options=StageOptions(frozen=frozenset(frozen)))
    learner.step([told(1, 4)])
    assert len(done) == 3 * 4 + 1 - 4  # of qkv, o, gate and up, down, and the head


def test_a_stage_may_be_frozen_whole() -> None:
    made = model("llama", False)
    names = frozenset(name for name in stage_tensors(made.spec, 0, 3) if name.startswith("layers.1."))
    frozen, plain = (
        Learner(made, FLOAT64, cut=(1, 2), options=StageOptions(frozen=one)) for one in (names, frozenset())
    )
    assert frozen.stages[1].flat.weights.shape == (0,)
    assert (frozen.stages[1].parts, frozen.stages[1].owned) == (((0, 0),), ())
    first, second = (learner.step([told(2, 5)]) for learner in (frozen, plain))
    assert all(torch.equal(gradient, second.gradients[key]) for key, gradient in first.gradients.items())


# --- masters and narrow weights ------------------------------------------------------------------------------


def narrow(case: str, cut: tuple[int, ...] = ()) -> Learner:
    return Learner(model(case, False), BFLOAT16, cut=cut)


def test_wide_weights_are_their_own_masters() -> None:
    (stage,) = stages("llama", False, ())
    assert stage.flat.masters is stage.flat.weights
    stage.flat.publish(0, len(stage.flat.weights))


def test_narrow_weights_have_float32_masters() -> None:
    made = model("llama", False)
    tensors = made.weights(FLOAT64)
    stage = TrainingStage(made.spec, 0, 3, tensors, BFLOAT16)
    flat = stage.flat
    assert (flat.weights.dtype, flat.gradients.dtype, flat.masters.dtype) == (BFLOAT16, FLOAT32, FLOAT32)
    for name, (first, end) in stage.places.items():  # masters are not rounded to the weights' dtype
        assert torch.equal(flat.masters[first:end], tensors[name].flatten().float())
    before = flat.weights.clone()
    flat.masters.add_(1.0)
    flat.publish(64, 100)
    assert torch.equal(flat.weights[64:100], flat.masters[64:100].bfloat16())
    assert torch.equal(flat.weights[:64], before[:64])
    assert torch.equal(flat.weights[100:], before[100:])


def test_small_updates_of_narrow_weights_are_not_lost() -> None:
    (stage,) = narrow("llama").stages
    stage.clear()
    stage.complete()
    first, before = stage.flat.masters.clone(), stage.flat.weights.clone()
    for _ in range(200):
        stage.flat.gradients.copy_(first * (1e-4 / RATE))
        stage.update(RATE)
    held = before != 0
    assert torch.allclose(stage.flat.masters, first * (1 - 200 * 1e-4), rtol=1e-4)
    assert (stage.flat.weights[held] != before[held]).float().mean() > 0.9  # alone each would round to nothing


@pytest.mark.parametrize("case", ["gpt2", "llama-bias", "olmo2"])
def test_gradients_of_narrow_weights_add_up_in_float32(case: str) -> None:
    """50 times the same gradient: in bfloat16 the sum of 50 would be wrong by parts in a hundred."""
    learner = narrow(case, (1, 2))
    tokens, targets = told(1, 2, ignored=0.0)
    for _ in range(50):
        learner.backward(learner.forward(tokens, targets), 1.0)
    many = learner._all("gradients")
    for stage in learner.stages:
        stage.clear()
    learner.backward(learner.forward(tokens, targets), 1.0)
    for stage in learner.stages:
        stage.complete()
    for key, gradient in learner._all("gradients").items():
        assert gradient.dtype == FLOAT32
        assert torch.allclose(many[key], 50 * gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max())), key


def test_a_group_of_narrow_weights_learns_what_one_process_learns() -> None:
    options = StageOptions(2, "full", 0.1)
    limit = bound("llama", True, BFLOAT16, options=options)
    assert group_error(2, "llama", True, BFLOAT16, options=options) < limit < 0.5


def test_what_was_done_again_keeps_nothing_between_steps() -> None:
    learner = Learner(model("llama", False), FLOAT32, options=StageOptions(2, "full"))
    passed = learner.forward(*told(1, 4), later=True)
    learner.backward(passed, 1.0)
    learner.stages[0].weigh(passed[0])
    assert all(segment._ends is None for segment in passed[0].segments)
    assert not any(segment.at.products._waiting for segment in passed[0].segments)


def test_parts_of_a_backward_come_in_order() -> None:
    made = model("llama", False)
    learner = Learner(made, FLOAT32, options=StageOptions(2))
    (passed,) = learner.forward(*told(1, 4))
    with pytest.raises(AssertionError, match=r"^parts of a backward come in order$"):
        learner.stages[0].backward(passed, None, 1)
    learner.stages[0].backward(passed, 1.0, 0)
    with pytest.raises(AssertionError, match=r"^a micro-batch comes back once$"):
        learner.stages[0].backward(passed, 1.0, 0)
    with pytest.raises(AssertionError, match=r"^4 parts of 3 layers$"):
        TrainingStage(made.spec, 0, 3, made.weights(FLOAT32), FLOAT32, options=StageOptions(4))
