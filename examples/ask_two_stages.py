"""Asks the demo model, split over two processes of this host, and prints where the time went."""

import sys
import tempfile
from pathlib import Path

from rich.console import Console

import plait


def main() -> None:
    """One question, twice at once: two users, two micro-batches, one answer each."""
    options = plait.Options(stages=2, users=2, schedule="pipelined", micro_batches=2, max_tokens=16)
    with tempfile.TemporaryDirectory() as folder:
        result = plait.generate(["What is the capital of France?"], options, run=Path(folder) / "run")
    for text in result.texts:
        print(text)
    plait.report(result.record, Console(highlight=False))
    assert result.texts == ("The capital of France is Paris.",) * 2
    assert result.json["measured"]["comm_bytes"] == result.json["predicted"]["comm_bytes"]


if __name__ == "__main__":
    sys.exit(main())
