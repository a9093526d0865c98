"""What names this host, and what a rank's process on it is told about threads."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path


def cpu_model() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def torch_version() -> str:
    """Torch's version, without the import, which takes a second."""
    return metadata.version("torch")


def rank_environment(threads: int) -> Mapping[str, str]:
    """The environment of a process that computes with `threads`.

    OpenMP threads sleep soon between two computations, or they would take the core of a neighbour; a person's own
    setting stays.
    """
    ours = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        ours["GOMP_SPINCOUNT"] = "20000"
    return {**os.environ, **ours}
