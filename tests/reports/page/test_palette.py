"""Colours that people with any common colour blindness tell apart, and letters that can be read."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from plait.reports.colours import COLOURS
from plait.reports.page.palette import DARK, DARK_SORTS, LIGHT, contrast, text_on

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# table 1, severity 1.0; they work on linear RGB
VISIONS = {
    "usual": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}

# CIE 1976: sRGB to XYZ under D65, and L*a*b*, where a distance of 2.3 is just noticed (Mahy et al. 1994)
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(colour: str, vision: str) -> np.ndarray:
    seen = np.clip(VISIONS[vision] @ linear(colour), 0, 1)
    ratio = (TO_XYZ @ seen) / WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(first: str, second: str, vision: str) -> float:
    return float(np.linalg.norm(lab(first, vision) - lab(second, vision)))


def test_the_measure_itself() -> None:
    assert lab("#ffffff", "usual") == pytest.approx([100, 0, 0], abs=0.02)
    assert lab("#ff0000", "usual") == pytest.approx([53.24, 80.09, 67.20], abs=0.05)
    assert distance("#ff0000", "#00a000", "usual") > 100
    assert distance("#c82000", "#687000", "deutan") < 0.3 * distance("#c82000", "#687000", "usual")
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("sorts", [COLOURS, DARK_SORTS], ids=["light", "dark"])
def test_what_is_drawn_is_told_apart(sorts: dict[str, str], vision: str) -> None:
    near = {
        (one, other): round(distance(sorts[one], sorts[other], vision), 1)
        for one, other in combinations(sorts, 2)
        if distance(sorts[one], sorts[other], vision) < 12
    }
    assert near == {}


@pytest.mark.parametrize(("theme", "sorts"), [(LIGHT, COLOURS), (DARK, DARK_SORTS)], ids=["light", "dark"])
def test_text_and_letters_are_read(theme: dict[str, str], sorts: dict[str, str]) -> None:
    for ground in ("ground", "field"):
        for ink in ("ink", "dim", "accent", "alarm"):
            assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
    for name, colour in sorts.items():
        assert contrast(text_on(colour), colour) >= 4.5, name


@pytest.mark.parametrize(("theme", "sorts"), [(LIGHT, COLOURS), (DARK, DARK_SORTS)], ids=["light", "dark"])
def test_work_stands_out_from_the_ground_and_waiting_recedes(theme: dict[str, str], sorts: dict[str, str]) -> None:
    to_ground = {name: distance(colour, theme["ground"], "usual") for name, colour in sorts.items()}
    assert min(to_ground, key=to_ground.__getitem__) == "wait"
    assert all(far > 35 for name, far in to_ground.items() if name != "wait")
