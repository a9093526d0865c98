"""Gradients, losses and updated weights of a stage that learns equal those of `transformers` and of one process."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from plait.errors import SpecError, WeightsError
from plait.nn.training import norms, partial
from plait.nn.training.loss import IGNORED
from plait.nn.training.partial import Partial
from plait.nn.training.stage import TrainingStage
from plait.spec.presets import model_preset
from plait.spec.shards import make_shards, whole_shard

from .models import CASES, _ours, float64_reference
from .training_ranks import bound, fresh, group_error, model
from .training_steps import BOUND, RATE, Learner, Step, steps, told, worst_error

FLOAT64, FLOAT32 = torch.float64, torch.float32
FAMILIES = (
    "gpt2",
    "llama",
    "llama-9-3-tied",
    "llama-bias",
    "mistral-window",
    "olmo2",
    "phi3-partial",
    "qwen2",
    "qwen3",
)


def theirs(reference: torch.nn.Module, spec: Any) -> list[Step]:
    """The same steps by `transformers` and torch's SGD."""
    optimizer = torch.optim.SGD(reference.parameters(), RATE)
    found = []
    for micro_batches in steps(2, 12):
        optimizer.zero_grad()
        valid, total = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches), 0.0
        for tokens, targets in micro_batches:
            logits = reference(tokens).logits.flatten(0, 1)
            loss = cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum") / valid
            loss.backward()
            total += float(loss.detach())
        gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
        optimizer.step()
        weights = {name: parameter.detach() for name, parameter in reference.named_parameters()}
        found.append(Step(total, named(spec, gradients), named(spec, weights)))
    return found


def named(spec: Any, tensors: dict[str, Tensor]) -> dict[tuple[int, str], Tensor]:
    return {(0, name): tensor.clone() for name, tensor in _ours(spec, tensors).items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("case", sorted(CASES))
def test_float64_equals_transformers_made_float64_throughout(case: str, tied: bool) -> None:
    made = fresh(case, tied)
    learner = Learner(made, FLOAT64)
    with float64_reference(made.reference) as reference:
        expected = theirs(reference, made.spec)
    for one, step in zip(steps(2, 12), expected, strict=True):
        assert worst_error(made, learner.step(one), step, whole_shard(made.spec), FLOAT64) < BOUND[FLOAT64]


@pytest.mark.parametrize("case", FAMILIES)
def test_float32_equals_transformers_as_it_is(case: str) -> None:
    made = fresh(case, "tied" in case)
    learner = Learner(made, FLOAT32)
    for one, step in zip(steps(2, 12), theirs(made.reference, made.spec), strict=True):
        assert worst_error(made, learner.step(one), step, whole_shard(made.spec), FLOAT32) < BOUND[FLOAT32]


@settings(max_examples=90, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=st.sampled_from(sorted(CASES)),
    tied=st.booleans(),
    tp=st.integers(1, 5),
    sequence=st.booleans(),
    dtype=st.sampled_from((FLOAT64, FLOAT64, FLOAT32)),
    shape=st.sampled_from(((1, 1), (2, 3), (3, 11))),
    slow=st.booleans(),
    cut=st.sampled_from(((), (), (1,), (1, 2))),
)
def test_any_tensor_group_equals_one_process(
    case: str,
    tied: bool,
    tp: int,
    sequence: bool,
    dtype: torch.dtype,
    shape: tuple[int, int],
    slow: bool,
    cut: tuple[int, ...],
) -> None:
    shares = [1.0] + [3.0] * (tp - 1) if slow else []
    assert group_error(tp, case, tied, dtype, *shape, sequence, shares, cut) < bound(case, tied, dtype, *shape, cut)


@pytest.mark.soak
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("case", sorted(CASES))
def test_every_tensor_group_equals_one_process(case: str, tp: int, tied: bool, sequence: bool) -> None:
    for dtype in (FLOAT64, FLOAT32):
        assert group_error(tp, case, tied, dtype, sequence=sequence) < bound(case, tied, dtype)


def test_t10_norms_that_see_only_their_rows_are_summed() -> None:
    assert group_error(2, "llama", False, length=9, sequence=True) < BOUND[FLOAT64]  # copies equal, and equal to tp=1


# --- seeded faults -------------------------------------------------------------------------------------------


def caught(tp: int, case: str, **given: Any) -> bool:
    """Whether the comparison sees that something is wrong: copies that differ, or errors far beyond the bound."""
    try:
        return group_error(tp, case, False, **given) > 1e4 * BOUND[FLOAT64]
    except AssertionError as error:
        return "ranks differ in the" in str(error)


def test_norms_that_are_not_summed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partial, "complete", lambda self, part: self._parameters.fill(part))
    assert caught(2, "mistral-full", sequence=True)
    assert caught(2, "qwen3")  # each rank sees its heads alone, also without sequence


def test_kv_heads_whose_copies_are_not_summed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "_shared", lambda shard, group: [])
    assert caught(4, "llama")
    assert not caught(2, "llama")  # two KV heads over two ranks: no copies


def test_a_loss_scaled_by_the_ranks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = TrainingStage.backward

    def scaled(self: TrainingStage, passed: Any, gradient: Any, part: int | None = None) -> Tensor | None:
        return backward(self, passed, gradient / self._group.size, part)

    monkeypatch.setattr(TrainingStage, "backward", scaled)
    assert caught(2, "llama")
    assert not caught(1, "llama")


def test_a_copied_key_normalised_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms.HeadNorm, "once", lambda self, along: along)
    assert caught(4, "olmo2")
    monkeypatch.undo()
    assert not caught(4, "olmo2")


# --- what else a stage promises ------------------------------------------------------------------------------


def test_tokens_that_do_not_count_have_no_gradient() -> None:
    tokens, targets = told(2, 6)
    learner = Learner(model("gpt2", True), FLOAT64)
    found = learner.step([(tokens, torch.full_like(targets, IGNORED))])
    assert found.loss == 0
    assert all(not gradient.any() for gradient in found.gradients.values())


def test_products_for_weights_may_wait() -> None:
    at_once, later = (Learner(model("llama-bias", False), FLOAT32, cut=(1,)) for _ in range(2))
    for one in steps(2, 5):
        first, second = at_once.step(one), later.step(one, later=True)
        assert all(torch.equal(first.gradients[name], second.gradients[name]) for name in first.gradients)


def test_gradients_of_waiting_products_are_not_there_before() -> None:
    learner = Learner(model("llama", False), FLOAT64)
    (passed,) = learner.forward(*told(1, 4), later=True)
    learner.backward([passed], 1.0)
    (stage,) = learner.stages
    stage.complete()
    assert not stage.gradients["layers.1.q.weight"].any()
    assert stage.gradients["layers.1.attn_norm.weight"].any()


def test_pieces_of_fused_weights_are_views_of_one_storage() -> None:
    (stage,) = Learner(model("llama", False), FLOAT32).stages
    weights = stage.weights
    for before, after in (("q", "k"), ("k", "v"), ("gate", "up")):
        one, next_ = weights[f"layers.0.{before}.weight"], weights[f"layers.0.{after}.weight"]
        assert one.data_ptr() + one.nbytes == next_.data_ptr()


def test_bfloat16_stays_near_float32() -> None:
    wide, narrow = (Learner(model("llama", False), dtype).step([told(2, 12)]) for dtype in (FLOAT32, torch.bfloat16))
    assert narrow.loss == pytest.approx(wide.loss, rel=0.02)
    for name, gradient in wide.gradients.items():
        assert float((narrow.gradients[name].float() - gradient).norm() / gradient.norm()) < 0.1, name


def test_weights_that_do_not_fit_are_named() -> None:
    spec = model("llama", False).spec
    shard = make_shards(spec, 2)[1]
    tensors = {**model("llama", False).weights(FLOAT32, 0, 1), "layers.7.q.weight": torch.zeros(1)}
    del tensors["layers.0.attn_norm.weight"]
    message = (
        "the weights do not fit the model:\n"
        "  layers.0.attn_norm.weight is missing\n"
        "  embed.weight is [97, 48], not [48, 48]\n"
        "  layers.0.q.weight is [48, 48], not [24, 48]\n"
        "  layers.0.k.weight is [24, 48], not [12, 48]\n"
        "  layers.0.v.weight is [24, 48], not [12, 48]\n"
        "  layers.0.o.weight is [48, 48], not [48, 24]\n"
        "  layers.0.gate.weight is [80, 48], not [40, 48]\n"
        "  layers.0.up.weight is [80, 48], not [40, 48]\n"
        "  layers.0.down.weight is [48, 80], not [48, 40]\n"
        "  layers.7.q.weight is not a tensor of this stage"
    )

    class Two:
        index, size = 1, 2

    with pytest.raises(WeightsError, match=f"^{re.escape(message)}$"):
        TrainingStage(spec, 0, 1, tensors, FLOAT32, shard, Two())  # type: ignore[arg-type]


def test_models_that_can_only_be_planned_are_refused() -> None:
    with pytest.raises(SpecError):
        TrainingStage(model_preset("mixtral-8x7b"), 0, 1, {}, FLOAT32)
