"""The page's colours, on light and on dark: `reports.colours`, and what must differ where the ground is dark.

Contrast after WCAG 2.2: (L1 + 0.05) ÷ (L2 + 0.05) of the relative luminances.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.reports.colours import COLOURS

LIGHT: Mapping[str, str] = {
    "ground": "#ffffff",
    "ink": "#1c2024",
    "dim": "#5a6169",
    "line": "#dfe2e6",
    "field": "#f5f6f8",
    "accent": "#00598c",
    "alarm": "#a33c00",
}
"""Ground and text of a page on white."""

DARK: Mapping[str, str] = {
    "ground": "#14171a",
    "ink": "#e8eaed",
    "dim": "#a4abb3",
    "line": "#343a40",
    "field": "#1e2226",
    "accent": "#7cc4f0",
    "alarm": "#ff9d66",
}
"""The same on dark."""

DARK_SORTS: Mapping[str, str] = {**COLOURS, "reduction": "#f2f2f2", "wait": "#4a5058", "message": "#3b8fd4"}
"""What is drawn, on dark: black and the dark blue would not be seen, and what is light would not recede."""


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """1 (the same) to 21 (black on white)."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def text_on(colour: str) -> str:
    """Black or white: what is read better on `colour`."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, colour))


def drawn(dark: bool) -> tuple[list[str], list[str]]:
    """The colour of each sort of work, in the order of `COLOURS`, and of the letters on it."""
    colours = list((DARK_SORTS if dark else COLOURS).values())
    return colours, [text_on(colour) for colour in colours]


def css(theme: Mapping[str, str], sorts: Mapping[str, str]) -> str:
    """Both as CSS variables: ``--ink`` and ``--sort-forward``."""
    named = {**theme, **{f"sort-{name}": colour for name, colour in sorts.items()}}
    return " ".join(f"--{name}: {value};" for name, value in named.items())
