"""How a report tells the difference between predicted and measured, wherever it does: one convention.

JSON's `off` is another one, kept as it is documented: predicted ÷ measured − 1.
"""

from __future__ import annotations

CONVENTION = "Differences are measured - predicted, and their percentages of the predicted."
"""Said once on a page and in a text."""

_MOST = 10
"""A change of more than so many times the predicted is not told in percent."""


def share_of_predicted(predicted: float, measured: float) -> str:
    """``+29.6 %``: measured − predicted as a share of the predicted, ``>10x`` of far more; empty where it is 0."""
    if not predicted:
        return ""
    change = (measured - predicted) / abs(predicted)
    return f"{change * 100:+.1f} %" if change <= _MOST else f">{_MOST}x"
