"""Dropout's masks: known bits, shares kept, and the same for every cut of the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from plait.nn.group import Alone
from plait.nn.hashing import fold
from plait.nn.training.collectives import Exchange
from plait.nn.training.dropout import Dropout, kept_mask
from plait.nn.training.linear import Pass, Products
from plait.nn.training.loss import IGNORED
from plait.nn.training.options import Place, StageOptions
from plait.nn.training.stage import TrainingStage

from .training_ranks import model
from .training_steps import Learner, told

FLOAT64 = torch.float64


class Index:
    """One of three ranks, whose rows only matter here."""

    size = 3

    def __init__(self, index: int) -> None:
        self.index = index


START = Place()


def mask(
    dropout: Dropout, batch: int, length: int, channels: int, place: Place = START, rank: int | None = None
) -> Tensor:
    group = Alone() if rank is None else Index(rank)
    exchange = Exchange(group, rank is not None, batch * length)  # type: ignore[arg-type]
    first, end = exchange.rows
    return dropout.mask(torch.empty(end - first, channels), Pass(exchange, Products(), length, place))


def test_masks_are_the_hash_of_their_place() -> None:
    """Value by value, in Python's integers: the low half of a hash is for even channels, the high half for odd."""
    rate, seed, name, step, channels = 0.3, 11, "layers.3.attn", 5, 7
    found = mask(Dropout(rate, seed, name), 2, 3, channels, Place(step, 4))
    expected = torch.empty_like(found)
    key = fold(seed, step, *name.encode())
    for token in range(6):
        for channel in range(channels):
            counter = ((4 + token // 3) << 40) + (token % 3) * 4 + channel // 2
            bits = (mixed(key, counter) >> (32 * (channel % 2))) & 0xFFFFFFFF
            signed = bits - (1 << 32) if bits >> 31 else bits
            expected[token, channel] = signed + (1 << 31) >= rate * (1 << 32)
    assert torch.equal(found, expected)
    known = ["1010010", "1111011", "1001101", "1000111", "1111111", "1011100"]
    assert ["".join(str(int(value)) for value in row) for row in found.tolist()] == known


def mixed(key: int, counter: int) -> int:
    """SplitMix64's finaliser."""
    word = (key + 0x9E3779B97F4A7C15 + counter) % (1 << 64)
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return word ^ (word >> 31)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_the_share_that_stays_is_one_minus_the_rate(rate: float) -> None:
    found = mask(Dropout(rate, 0, "embed"), 8, 64, 512).double()  # 262,144 values
    spread = (rate * (1 - rate)) ** 0.5
    assert abs(found.mean().item() - (1 - rate)) < 4 * spread / 512
    for dim, values in ((0, 512), (1, 512)):
        assert (found.mean(dim) - (1 - rate)).abs().max() < 6 * spread / values**0.5  # no row or channel stands out
    centred = found - (1 - rate)
    neighbours = [(centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1]), (centred[64:], centred[:-64])]
    for one, other in neighbours:
        assert abs((one * other).mean().item()) < 5 * spread**2 / 500


def test_what_stays_is_scaled() -> None:
    x, dropout = torch.ones(4, 6, dtype=FLOAT64), Dropout(0.2, 0, "embed")
    kept = mask(dropout, 1, 4, 6)
    assert torch.equal(dropout.scaled(x, kept), kept / 0.8)


def test_seed_step_name_and_sequence_all_change_a_mask() -> None:
    plain = mask(Dropout(0.5, 0, "layers.0.attn"), 1, 8, 64)
    others = [
        mask(Dropout(0.5, 1, "layers.0.attn"), 1, 8, 64),
        mask(Dropout(0.5, 0, "layers.0.mlp"), 1, 8, 64),
        mask(Dropout(0.5, 0, "layers.1.attn"), 1, 8, 64),
        mask(Dropout(0.5, 0, "layers.0.attn"), 1, 8, 64, Place(1, 0)),
        mask(Dropout(0.5, 0, "layers.0.attn"), 1, 8, 64, Place(0, 1)),
    ]
    for other in others:
        assert 0.4 < (plain == other).double().mean() < 0.6


@pytest.mark.parametrize("channels", [8, 9])
def test_a_mask_is_the_same_for_every_cut_of_the_batch(channels: int) -> None:
    dropout = Dropout(0.3, 2, "layers.0.mlp")
    whole = mask(dropout, 6, 5, channels, Place(7, 0))
    for size in (1, 2, 3):
        cut = [mask(dropout, size, 5, channels, Place(7, first)) for first in range(0, 6, size)]
        assert torch.equal(torch.cat(cut), whole)
    split = [mask(dropout, 6, 5, channels, Place(7, 0), rank) for rank in range(3)]
    assert torch.equal(torch.cat(split), whole)
    longer = mask(dropout, 6, 8, channels, Place(7, 0)).view(6, 8, -1)[:, :5]
    assert torch.equal(longer.reshape(whole.shape), whole)  # nor does the length of a sequence count


@pytest.mark.parametrize("size", [1, 2])
def test_micro_batches_of_any_size_learn_the_same(size: int) -> None:
    made, (tokens, targets) = model("gpt2", False), told(4, 6)
    options = StageOptions(dropout=0.3)
    whole, cut = (Learner(made, FLOAT64, cut=(1,), options=options) for _ in range(2))
    first = whole.step([(tokens, targets)])
    second = cut.step(list(zip(tokens.split(size), targets.split(size), strict=True)))
    assert first.loss == pytest.approx(second.loss, rel=1e-12)
    for key, gradient in first.gradients.items():
        assert torch.allclose(gradient, second.gradients[key], rtol=1e-9, atol=1e-12), key


@pytest.mark.parametrize("case", ["gpt2", "olmo2", "llama"])
def test_gradients_with_dropout_are_the_slope_of_the_loss(case: str) -> None:
    """Along a random direction, against the difference of two losses with the same masks."""
    made, (tokens, targets) = model(case, True), told(2, 6)
    stage = TrainingStage(made.spec, 0, 3, made.weights(FLOAT64), FLOAT64, options=StageOptions(dropout=0.25))
    passed = stage.forward(tokens, targets, place=Place(2, 3))
    stage.backward(passed, 1.0)
    stage.complete()
    start, losses, small = stage.flat.weights.clone(), [], 1e-6
    direction = torch.randn(start.shape, dtype=FLOAT64, generator=torch.Generator().manual_seed(0))
    for sign in (1, -1):
        stage.flat.weights.copy_(start + sign * small * direction)
        losses.append(float(stage.forward(tokens, targets, place=Place(2, 3)).loss))
    slope = float(stage.flat.gradients @ direction)
    assert (losses[0] - losses[1]) / (2 * small) == pytest.approx(slope, rel=1e-5)
    assert (targets != IGNORED).any()


def test_every_place_of_the_model_drops() -> None:
    """The embedding, and two of each layer; with pre- and post-norm."""
    for case in ("llama", "olmo2"):
        names: list[bytes] = []
        learner = Learner(model(case, False), FLOAT64, options=StageOptions(dropout=0.5))
        (stage,) = learner.stages
        drops = [stage._embedding_dropout]
        drops += [one for run in stage._runs for layer in run for one in (layer._attn_dropout, layer._mlp_dropout)]
        for one in drops:
            one.mask = noted(one, names)  # type: ignore[method-assign]
        learner.forward(*told(1, 3))
        assert names == [b"embed"] + [
            f"layers.{layer}.{what}".encode() for layer in range(3) for what in ("attn", "mlp")
        ]


def noted(dropout: Dropout, names: list[bytes]) -> object:
    def called(rows: Tensor, at: Pass) -> Tensor:
        names.append(dropout._name)
        return Dropout.mask(dropout, rows, at)

    return called


def test_bits_are_even_over_the_whole_range() -> None:
    """A rate decides by all 32 bits: rates that lie closer than 1 ÷ 65,536 drop different values."""
    positions = torch.arange(4096)
    first, second = (kept_mask(3, positions * 0, positions, 512, rate) for rate in (0.5, 0.5 + 2**-17))
    dropped = int(first.sum() - second.sum())
    assert 4 <= dropped <= 32  # 16 expected
