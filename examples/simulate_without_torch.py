"""Eight prompts of 64 tokens through four stages, drawn without torch: why micro-batches shrink the bubble.

With stages of equal time and free links the bubble is (p − 1) / (m + p − 1); here p = 4.
"""

import sys

from rich.console import Console

from plait.costs.protocol import FixedCosts
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row
from plait.reports.marks import glyphs_for
from plait.reports.picture import picture
from plait.schedules.generation import make_round
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec
from plait.timeline.compare import summarise

STAGES = 4
MODEL = ModelSpec(
    name="any model of eight layers", family="llama", layers=8, hidden=64, heads=4, kv_heads=4, head_dim=16,
    intermediate=128, vocab=100, max_positions=512, norm_eps=1e-5, rope=None, windows=(None,) * 8,
)  # fmt: skip


def bubble_with(micro_batches: int, console: Console) -> float:
    """Deal the prompts out to `micro_batches`, simulate the round, draw it, and return its bubble."""
    stages = tuple(Stage((2 * i, 2 * i + 2), (i,), host=f"host{i}") for i in range(STAGES))
    layout = Layout({"pp": STAGES}, stages)
    each = 8 // micro_batches
    work = tuple(
        MicroBatch(tuple(Row(i, i, 0, 64, samples=False) for i in range(first, first + each)))
        for first in range(0, 8, each)
    )
    seconds = dict.fromkeys(range(STAGES), 0.010 * each)
    timeline = simulate(layout, [make_round(0, STAGES, work)], FixedCosts(seconds), MODEL)
    console.print(f"\n{micro_batches} × {each} prompts")
    console.print(picture(timeline, None, console.width, glyphs=glyphs_for(console.encoding)))
    return summarise(timeline).whole.bubble


def main() -> None:
    """Draw 1, 2, 4 and 8 micro-batches, and check each bubble against the formula."""
    console = Console()
    for micro_batches in (1, 2, 4, 8):
        bubble = bubble_with(micro_batches, console)
        expected = (STAGES - 1) / (micro_batches + STAGES - 1)
        console.print(f"bubble {bubble:.1%}, by the formula {expected:.1%}")
        assert abs(bubble - expected) < 1e-9
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main()
