"""Runs every benchmark, one after another, and writes docs/benchmarks.md."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil
import torch

from plait.prober.host import cpu_model, usable_cores

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"


def head() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return (
        "# Benchmarks\n\n"
        "Made by `make bench` on a quiet machine; do not edit. Everything that is compared ran side by side, in\n"
        "turns, in one run; figures are medians. The demo model is SmolLM2-135M-Instruct: 30 layers, weights\n"
        "dequantised from Q4_1.\n\n"
        f"{time.strftime('%Y-%m-%d')}: {cpu_model()}, {usable_cores()} cores, {memory:.0f} GiB; "
        f"Python {platform.python_version()}, torch {torch.__version__}.\n"
    )


def main() -> int:
    sections = [head()]
    for path in sorted(HERE.glob("bench_*.py")):
        sys.stderr.write(f"== {path.name}\n")
        start = time.monotonic()
        done = subprocess.run([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.stderr.write(f"{path.name} ended with exit status {done.returncode}\n")
            return 1
        sys.stdout.write(done.stdout + "\n")
        sys.stderr.write(f"   {time.monotonic() - start:.0f} s\n")
        sections.append(done.stdout)
    PAGE.write_text("\n".join(sections), encoding="utf-8")
    sys.stderr.write(f"written: {PAGE.relative_to(HERE.parent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
