"""Two hosts on one machine: network namespaces with addresses of their own, joined by a link that the kernel shapes.

    with two_hosts() as hosts:
        finished = hosts.torchrun(2, "-m", "plait", "generate", "--json", "What is gravity?")

    host 0  10.77.0.1 ── veth, 1 Gb/s each way (tc tbf) ── 10.77.0.2  host 1

Namespaces have names of their own in every run, and interfaces, addresses and ports belong to a namespace: two runs
never meet. The hosts share what such a namespace does not divide: the machine's name, cores, memory and clock.
Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import IO, NamedTuple

import psutil

from plait.plans.plan import Plan
from plait.spec.cluster import Cluster
from plait.spec.cluster_file import cluster_from_toml

INTERFACE = "link0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29500
RATE, BURST = "1gbit", "128kb"
_LAUNCHED = ("TORCHELASTIC_", "SLURM_", "GLOO_", "NCCL_")
_LAUNCHED_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class NoHosts(Exception):
    """Two hosts cannot be made here; the text says why."""


class Finished(NamedTuple):
    """What the launcher of one host ended with."""

    status: int
    stdout: str
    stderr: str


class _Running(NamedTuple):
    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]


class TwoHosts:
    """See `two_hosts`."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        self.namespaces = tuple(namespaces)
        self._running: list[_Running] = []

    def torchrun(self, ranks: int, *arguments: str, timeout_s: float = 120.0) -> tuple[Finished, Finished]:
        """Run Python with `arguments` under torchrun on both hosts, `ranks` on each, to the end."""
        self.start_torchrun(ranks, *arguments)
        return self.finished(timeout_s)

    def start_torchrun(self, ranks: int, *arguments: str) -> None:
        """As `torchrun`, without waiting."""
        for host in range(2):
            self.start(host, *torchrun_command(host, ranks), *arguments)

    def start(self, host: int, *command: str) -> None:
        """Start a command on a host."""
        stdout, stderr = _file(), _file()
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespaces[host], *command],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        self._running.append(_Running(process, stdout, stderr))

    def finished(self, timeout_s: float) -> tuple[Finished, Finished]:
        """What was started on both hosts, once it has ended. Errors: TimeoutExpired with what it had said."""
        end_s = time.monotonic() + timeout_s
        for one in self._running:
            try:
                one.process.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                said = "\n".join(_text(each.stdout) + _text(each.stderr) for each in self._running)
                raise subprocess.TimeoutExpired(error.cmd, timeout_s, said.encode()) from None
        first, second = (
            Finished(one.process.returncode, _text(one.stdout), _text(one.stderr)) for one in self._running
        )
        self._running.clear()
        return first, second

    @property
    def ended(self) -> bool:
        """Nothing that was started still runs."""
        return all(one.process.wait(1) is not None for one in self._running)

    def said(self, host: int) -> str:
        """Standard error of what runs on a host, as far as it has come."""
        return _text(self._running[host].stderr)

    def process_of(self, rank: int) -> psutil.Process | None:
        """The process that a launcher has started as this rank."""
        for namespace in self.namespaces:
            for process in _processes(namespace):
                with suppress(psutil.Error):
                    if process.environ().get("RANK") == str(rank):
                        return process
        return None


def torchrun_command(host: int, ranks: int) -> list[str]:
    """The command that starts `ranks` ranks on a host, of two; without the arguments of Python."""
    where = ["--nnodes", "2", "--node-rank", str(host), "--master-addr", ADDRESSES[0], "--master-port", str(PORT)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", str(ranks)]
    return [*torchrun, "--no-python", "--", sys.executable]  # without the dashes it takes --run for its own --run-path


def environment() -> Mapping[str, str]:
    """This process's variables without a launcher's, and the interface that gloo is to use."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHED_NAMES and not name.startswith(_LAUNCHED)
    }
    return kept | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}


@contextmanager
def two_hosts(rate: str = RATE, burst: str = BURST) -> Iterator[TwoHosts]:
    """Two hosts, and whatever is started on them; gone afterwards, also after a failure. Errors: NoHosts.

    `burst`: what the link lets through at once after a silence. Messages below it are not shaped at all.
    """
    _require_tools()
    run = f"plait-{os.getpid()}-{secrets.token_hex(3)}"
    namespaces = [f"{run}-{host}" for host in range(2)]
    try:
        _make(namespaces, rate, burst)
        yield TwoHosts(namespaces)
    finally:
        for namespace in namespaces:
            _remove(namespace)


def cluster_of(ranks: int, flops: float, memory_bandwidth: float, latency_s: float, within_bandwidth: float) -> Cluster:
    """Two hosts of so many devices each, as the planner knows them. A device is a core: FLOP/s and bytes/s of one."""
    rates = {
        "flops": dict.fromkeys(("float32", "bfloat16"), flops),
        "memory_bandwidth_bytes_per_s": memory_bandwidth,
        "memory_gib": 4,
    }
    return cluster_from_toml(
        {
            "hosts": [{"name": "host", "count": 2, "devices": ranks, **rates}],
            "network": {
                "within_host": {"latency_us": 5, "bandwidth_bytes_per_s": within_bandwidth},
                "between_hosts": {"latency_s": latency_s, "bandwidth_gbit_per_s": 1, "host_bandwidth_gbit_per_s": 1},
            },
        }
    )


def on_devices(plan: Plan, cluster: Cluster) -> Plan:
    """The plan with rank r on the cluster's device r."""
    stages = tuple(
        replace(
            stage,
            host=cluster.devices[stage.ranks[0]].host,
            devices=tuple(cluster.devices[rank].name for rank in stage.ranks),
        )
        for stage in plan.layout.stages
    )
    return replace(plan, layout=replace(plan.layout, stages=stages))


def _require_tools() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise NoHosts(f"`{'` and `'.join(missing)}` not found: apt-get install -y iproute2")
    if os.geteuid():
        raise NoHosts("network namespaces need root")


def _make(namespaces: Sequence[str], rate: str, burst: str) -> None:
    for namespace in namespaces:
        _do("ip", "netns", "add", namespace)
    ends = [["name", INTERFACE, "netns", namespace] for namespace in namespaces]
    _do("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
    for namespace, address in zip(namespaces, ADDRESSES, strict=True):
        inside = ["ip", "-n", namespace]
        _do(*inside, "address", "add", f"{address}/24", "dev", INTERFACE)
        _do(*inside, "link", "set", "lo", "up")
        _do(*inside, "link", "set", INTERFACE, "up")
        shape = ["root", "tbf", "rate", rate, "burst", burst, "latency", "50ms"]
        _do("tc", "-n", namespace, "qdisc", "add", "dev", INTERFACE, *shape)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoHosts(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def _processes(namespace: str) -> list[psutil.Process]:
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    found = []
    for number in listed.stdout.split():
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(number)))
    return found


def _remove(namespace: str) -> None:
    """End what still runs in a namespace, and the namespace; its end of the link goes with it."""
    end_s = time.monotonic() + 10
    while (left := _processes(namespace)) and time.monotonic() < end_s:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, 1)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _file() -> IO[bytes]:
    """Not a pipe: nobody reads while it runs, and its process must not wait for that. Closed when it is forgotten."""
    return tempfile.TemporaryFile()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
