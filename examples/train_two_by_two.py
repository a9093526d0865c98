"""Trains a small model on the help texts of Python over four processes: two replicas of a pipeline of two."""

import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

from rich.console import Console

import plait


def main() -> None:
    """Forty steps: what the loss was, and where the time of the last one went, predicted above measured."""
    options = plait.TrainOptions(dp=2, pp=2, batch=16, sequence_length=64, steps=40, lr=3e-3, warmup=5)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "topics.txt"
        text.write_text("\n\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")
        result = plait.train("llama:layers=4,hidden=128,heads=4", text, options, run=Path(folder) / "run")
    for line in result.steps[:: len(result.steps) // 8]:
        print(f"step {line.step:>2}  loss {line.loss:.3f}  {line.tokens_per_s:.0f} tokens/s")
    plait.report(result.record, Console(highlight=False))
    first, last = result.steps[0], result.steps[-1]
    assert last.loss < 0.6 * first.loss, "it has learned nothing"
    assert last.comm_bytes == result.prediction.figures["comm_bytes"]


if __name__ == "__main__":
    sys.exit(main())
