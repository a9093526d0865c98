"""Initial weights are what the counter hash says, whoever asks, and as widely spread as they should be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from plait.spec.tensors import model_tensors
from plait.trainer.initial import initial_tensor

from .meshes import tiny

LARGE = (64, 512)


def test_known_values() -> None:
    made = initial_tensor(tiny(), "layers.0.q.weight", (2, 3), seed=7)
    # by Python's integers and `statistics.NormalDist().inv_cdf`
    expected = [
        [0.04153011183458654, -0.031827360357183004, -0.014010584686460544],
        [0.011003208012298807, -0.01775254183311395, 0.03960774402091125],
    ]
    assert made.double().numpy() == pytest.approx(np.array(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "deviation"),
    [
        ("embed.weight", 0.02),
        ("layers.3.q.weight", 0.02),
        ("layers.3.up.weight", 0.02),
        ("layers.3.o.weight", 0.02 / math.sqrt(8)),
        ("layers.3.down.weight", 0.02 / math.sqrt(8)),
        ("head.weight", 0.02),
    ],
)
def test_weights_are_normal(name: str, deviation: float) -> None:
    made = initial_tensor(tiny(4), name, LARGE, seed=0).double().flatten() / deviation
    items = made.numel()
    assert abs(float(made.mean())) < 4 / math.sqrt(items)
    assert abs(float(made.square().mean()) - 1) < 4 * math.sqrt(2 / items)
    assert abs(float(made.pow(4).mean()) - 3) < 4 * math.sqrt(96 / items)
    assert float(made.abs().max()) < 6


def test_norms_are_one_and_biases_zero() -> None:
    spec = tiny(norm="layer", mlp_bias=True, output_bias=True, qkv_bias=True, qk_norm="head")
    for name, shape in model_tensors(spec).items():
        made = initial_tensor(spec, name, shape, seed=1)
        assert made.shape == shape
        assert made.dtype == torch.float32
        if name.endswith(".bias"):
            assert not made.any(), name
        elif "norm" in name:
            assert bool((made == 1).all()), name
        else:
            assert len(made.unique()) > made.numel() * 0.99, name


def test_seed_and_name_make_the_numbers() -> None:
    spec = tiny()
    made = {
        (name, seed): initial_tensor(spec, name, (8, 8), seed)
        for name in ("layers.0.q.weight", "layers.1.q.weight", "layers.0.k.weight")
        for seed in (0, 1)
    }
    for one, tensor in made.items():
        for other, another in made.items():
            assert torch.equal(tensor, another) == (one == other)
    assert torch.equal(made["layers.0.q.weight", 0], initial_tensor(spec, "layers.0.q.weight", (8, 8), 0))
