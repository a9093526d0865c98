"""What names this host, what is free on it, and what a rank's process on it is told about threads."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import TracebackType

import psutil


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


def free_memory_here() -> int:
    """Bytes of memory that are free on this host, or in the container that this process is in."""
    container = _container_memory()
    free = psutil.virtual_memory().available
    return free if container is None else min(free, container[0] - container[1])


def memory_here() -> int:
    """Bytes of memory that this host has, or the container that this process is in may have."""
    container = _container_memory()
    every = psutil.virtual_memory().total
    return every if container is None else min(every, container[0])


def _container_memory() -> tuple[int, int] | None:
    """The limit of the container that this process is in, where it has one (cgroup v2), and what is used of it."""
    folder = Path("/sys/fs/cgroup")
    try:
        most, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return (int(most), int(used)) if most.isdigit() and used.isdigit() else None


def torch_version() -> str:
    """Torch's version, without the import, which takes a second."""
    return metadata.version("torch")


def rank_environment(threads: int, all_threads: int | None = None, index: int = 0, tp: int = 1) -> Mapping[str, str]:
    """The environment of a process that computes with `threads`, beside others: `all_threads` in all.

    It is rank `index` of a tensor group of `tp`.

    OpenMP threads spin between two computations, then sleep. Where all together are more than the cores, one that
    spins takes the core of a neighbour, so they sleep sooner. Measured on two cores, two stages layer-wise with two
    threads each: 8,000 turns take as long as one process, 20,000 take 7 to 10 % longer; one process alone is faster
    with 20,000, by 10 %.

    Ranks that compute on all cores, one or a tensor group, have each of their threads on a core of its own
    (docs/decisions/0008): the system may leave two on one core, and then every product, or every exchange, waits until
    the other has had its turn. A person's own settings stay.
    """
    ours = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        crowded = (threads if all_threads is None else all_threads) > usable_cores()
        ours["GOMP_SPINCOUNT"] = "8000" if crowded else "20000"
    cores = core_numbers()
    if 1 < threads * tp == len(cores) and not any(name in os.environ for name in _BINDING):
        ours["GOMP_CPU_AFFINITY"] = " ".join(map(str, cores[index * threads : (index + 1) * threads]))
    return {**os.environ, **ours}


_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""What a person may have set to bind threads to cores."""


def core_numbers() -> tuple[int, ...]:
    """The cores that this process may run on, by number; none where the system does not say."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


@contextmanager
def on_all_cores() -> Iterator[None]:
    """While it is entered, this thread may use all the cores that the process's threads are bound to.

    The first thread of a bound rank stays on the first core; ranks that load at the same time would share that one.
    """
    bound = os.environ.get("GOMP_CPU_AFFINITY", "").split()
    if not hasattr(os, "sched_setaffinity") or not bound or not all(core.isdigit() for core in bound):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, map(int, bound))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


MOST_OTHERS, TRUSTED_S = 0.1, 600.0
"""What was measured while others used more than this share of the cores is measured again after so many seconds."""


def doubtful(others: float, measured_at_s: float) -> bool:
    """Measured while others used the host, and long enough ago that they may be gone."""
    return others > MOST_OTHERS and time.time() - measured_at_s > TRUSTED_S


class Others:
    """While it is entered: which share of the cores work that is not ours took. Our children must end within."""

    share: float = 0.0

    def __enter__(self) -> Others:
        self._before = busy_s(), our_s(), time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        before_busy_s, before_our_s, began_s = self._before
        others_s = (busy_s() - before_busy_s) - (our_s() - before_our_s)
        self.share = min(1.0, max(0.0, others_s / (usable_cores() * (time.monotonic() - began_s))))


def busy_s(cores: Sequence[int] | None = None) -> float:
    """Seconds that these cores (None: those that we may use) were busy, since the system began."""
    each = psutil.cpu_times(percpu=True)
    ours = cores or core_numbers() or range(len(each))
    times = [each[core] for core in ours if core < len(each)]
    return sum(one.user + one.system + getattr(one, "nice", 0.0) + getattr(one, "steal", 0.0) for one in times)


def our_s() -> float:
    """Seconds that this process and its ended children computed."""
    ours = os.times()
    return ours.user + ours.system + ours.children_user + ours.children_system
