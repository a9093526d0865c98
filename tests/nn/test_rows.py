"""A decoding row has the same bits whatever its neighbours are (float32 on packed weights; attention in any dtype).

And what a stage does with rows that sample nothing, with its weights and with its cache.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from plait.errors import WeightsError
from plait.nn.attention import attend, seen, spans
from plait.nn.batch import Batch
from plait.nn.cache import KVCache, cache_bytes
from plait.nn.decoder import StageModel
from plait.nn.linear import Packed, packs
from plait.plans.round import MicroBatch, Row
from plait.spec.tensors import stage_tensors

from .models import CASES, Tiny, tiny

CONTEXT, SLOTS = 200, 6

pytestmark = pytest.mark.usefixtures("one_thread")


def stage(model: Tiny, dtype: torch.dtype, rows: int = SLOTS) -> StageModel:
    return StageModel(model.spec, 0, model.spec.layers, model.weights(dtype), dtype, rows=rows)


def filled(model: Tiny, whole: StageModel, lengths: list[int]) -> KVCache:
    """Every slot holds a prompt of its own, and stale rubbish behind it."""
    cache = KVCache(model.spec, 0, model.spec.layers, SLOTS, CONTEXT, whole.dtype)
    for layer in cache.layers:
        layer.uniform_(-2, 2)
    for slot, length in enumerate(lengths):
        ids = torch.arange(length) * (slot + 3) % 97
        whole.forward(Batch.of(MicroBatch((Row(slot, slot, 0, length, False),))), ids, cache)
    return cache


def decode(whole: StageModel, cache: KVCache, lengths: list[int], slots: list[int]) -> Tensor:
    rows = tuple(Row(slot, slot, lengths[slot], 1, True) for slot in slots)
    return whole.forward(Batch.of(MicroBatch(rows)), torch.tensor(slots) + 11, cache)


known_bits = pytest.mark.skipif(
    not packs(torch.float32, torch.device("cpu"), SLOTS) or torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="measured on AVX512; elsewhere rows are promised to be close, not to have the same bits",
)


@known_bits
@pytest.mark.parametrize("case", sorted(CASES))
def test_a_decoding_row_does_not_see_its_neighbours(case: str) -> None:
    model = tiny(case)
    whole = stage(model, torch.float32)
    lengths = [random.Random(case).randint(1, CONTEXT - 2) for _ in range(SLOTS)]
    cache = filled(model, whole, lengths)
    together = decode(whole, cache, lengths, list(range(SLOTS)))
    for company in ([0], [1, 2], [3, 4, 5], [0, 2, 5], [4]):
        apart = decode(whole, cache, lengths, company)
        assert torch.equal(apart, together[company]), company


@known_bits
@pytest.mark.parametrize(("out", "into"), [(960, 576), (576, 1536), (1536, 576)])
def test_products_of_the_demo_models_widths_do_not_mix_rows(out: int, into: int) -> None:
    product, x = Packed(torch.randn(out, into), None), torch.randn(70, into)
    together = product(x)
    for rows in (1, 2, 3, 8, 17, 64):
        assert torch.equal(product(x[:rows].clone()), together[:rows]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 70])
def test_attention_of_a_decoding_row_does_not_see_its_neighbours(dtype: torch.dtype, window: int | None) -> None:
    lengths = [180, 190, 150, 20, 192, 193]
    data = torch.randn(1, SLOTS, 6, CONTEXT, 64).to(dtype)
    queries = torch.randn(SLOTS, 9, 64).to(dtype)

    def attended(slots: list[int]) -> Tensor:
        rows = tuple(Row(slot, slot, lengths[slot] - 1, 1, True) for slot in slots)
        return attend(queries[slots], seen(spans(rows, window, CONTEXT, queries), data), 0)

    together = attended(list(range(SLOTS)))
    for company in ([0], [1, 2], [0, 3, 5], [4]):
        assert torch.equal(attended(company), together[company]), company


def test_rows_that_sample_nothing_give_no_logits() -> None:
    model = tiny("llama")
    whole = stage(model, torch.float32)
    cache = KVCache(model.spec, 0, 3, 2, 64, torch.float32)
    rows = (Row(0, 0, 0, 5, False), Row(1, 1, 0, 3, True), Row(2, 2, 0, 4, False))
    cache = KVCache(model.spec, 0, 3, 3, 64, torch.float32)
    assert whole.forward(Batch.of(MicroBatch(rows)), torch.arange(12), cache).shape == (1, 97)
    silent = MicroBatch((Row(0, 0, 5, 3, False), Row(2, 2, 4, 1, False)))
    logits = whole.forward(Batch.of(silent), torch.arange(4), cache)
    assert (logits.shape, logits.dtype) == ((0, 97), torch.float32)
    assert cache.layers[-1][0, :, 7].abs().sum() > 0  # keys and values are stored all the same


def test_a_stage_in_the_middle_gives_hidden_states_and_keeps_its_inputs() -> None:
    model = tiny("llama")
    middle = StageModel(model.spec, 1, 2, model.weights(torch.float32, 1, 2), torch.float32)
    inputs = torch.randn(4, model.spec.hidden)
    before = inputs.clone()
    rows = MicroBatch((Row(0, 0, 0, 3, False), Row(1, 1, 0, 1, True)))
    out = middle.forward(Batch.of(rows), inputs, KVCache(model.spec, 1, 2, 2, 8, torch.float32))
    assert out.shape == (4, model.spec.hidden)
    assert torch.equal(inputs, before)
    assert (middle.is_last, middle.device.type) == (False, "cpu")


def test_weights_are_taken_out_of_the_dictionary() -> None:
    model = tiny("llama-9-3-tied")
    weights = model.weights(torch.float32)
    StageModel(model.spec, 0, 3, weights, torch.float32)
    assert weights == {}


def test_weights_that_do_not_fit_are_listed() -> None:
    model = tiny("llama")
    weights = model.weights(torch.float32)
    del weights["layers.1.o.weight"]
    weights["norm.weight"] = torch.ones(47)
    weights["layers.7.q.weight"] = torch.ones(1)
    with pytest.raises(WeightsError) as caught:
        StageModel(model.spec, 0, 3, weights, torch.float32)
    assert str(caught.value) == (
        "the weights do not fit the model:\n"
        "  layers.1.o.weight is missing\n"
        "  norm.weight is [47], not [48]\n"
        "  layers.7.q.weight is not a tensor of this stage"
    )


def test_the_caches_bytes_follow_the_formula() -> None:
    spec = tiny("llama").spec
    cache = KVCache(spec, 1, 3, slots=2, context=64, dtype=torch.bfloat16)
    held = sum(layer.numel() * layer.element_size() for layer in cache.layers)
    assert cache.bytes == held == cache_bytes(spec, 2, 2, 64, torch.bfloat16) == 2 * 2 * 2 * 2 * 64 * 12 * 2


def test_every_tensor_of_the_helper_has_the_declared_shape() -> None:
    for case in CASES:
        model = tiny(case)
        assert {name: tuple(one.shape) for name, one in model.tensors.items()} == stage_tensors(model.spec, 0, 3), case
