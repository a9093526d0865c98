"""A token over a link that the kernel shapes, beside the same over one that is emulated: in turns, on the demo model.

The kernel's link counts Ethernet frames: of 1,514 bytes it counts, a message's bytes have 1,448 (IPv4 and TCP with time
stamps, no preamble), so the emulated link has that share of the rate. Its burst is as small as the kernel's timers
allow. The emulated link's latency is what a token's message is seen to take over the kernel's, less its bytes' time on
the wire; or the shortest that can be emulated.

This module is also what the ranks of that measurement run, under torchrun on both hosts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from plait.comm.cluster import join
from plait.comm.contract import Endpoint
from plait.comm.frames import head_bytes
from plait.comm.launcher import Environment, environment
from plait.comm.measure import measure_link, one_way_s
from plait.prober.emulated import own_link
from tests.generation import namespaces
from tests.generation.namespaces import TwoHosts

FRAME, PAYLOAD = 1514, 1448
BURSTS: Mapping[int, str] = {1000: "4800", 100: "1600"}
"""Bytes that the kernel's link lets through at once after a silence, by its Mb/s.

One frame at 100 Mb/s: with 4,800 bytes a token's message of 2.4 KB is not held back at all, where a link would take
0.2 ms for it. At 1 Gb/s, where it would take 0.02 ms, three frames: with one the link carries half of its rate, since
every frame waits for a timer.
"""

TOKEN_BYTES = 4 * 576
"""What two ranks send each other for one token of the demo model."""

SPLITS: Mapping[str, Sequence[str]] = {"pp 2": ("--layers", "15,15", "--schedule", "layerwise"), "tp 2": ("--tp", "2")}
_ASKED = ("--model", "demo", "--dtype", "float32", "--threads", "1", "--max-tokens", "24", "What is gravity?")
_TIMEOUT_S = 300.0


class Seen(NamedTuple):
    """What ranks see of a link: one way for a token's message; and what `measure_link` makes of several sizes."""

    token_s: float
    latency_s: float
    bandwidth_bytes_per_s: float


class Agreement(NamedTuple):
    """Seconds a token, run by run, over the one link and over the other, which has latency and bandwidth `asked`."""

    split: str
    rate_mbit: int
    seen: Seen
    asked: tuple[float, float]
    kernel_s: tuple[float, ...]
    emulated_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Emulated ÷ kernel-shaped, medians."""
        return statistics.median(self.emulated_s) / statistics.median(self.kernel_s)


def agreement(
    hosts: TwoHosts, rate_mbit: int, splits: Sequence[str], turns: int, say: Callable[[str], None] = lambda _: None
) -> list[Agreement]:
    """Both links in turns, for each split, over hosts with a link of that rate and its burst of `BURSTS`."""
    own = own_link(2, fresh=True)  # in the same minute: what was kept may be of a busier one
    seen = Seen(**json.loads(_said(hosts.torchrun(1, "-m", __name__, timeout_s=_TIMEOUT_S))))
    bandwidth = rate_mbit * 1e6 / 8 * PAYLOAD / FRAME
    frame_bytes = head_bytes(1) + TOKEN_BYTES
    latency_s = max(seen.token_s - frame_bytes / bandwidth, own.fastest.latency_s + 1e-6)
    link = f"{bandwidth * 8e-6:.6f}mbit,{latency_s * 1e6:.1f}us"
    say(f"{rate_mbit} Mb/s: emulated as {link}")
    found = []
    for split in splits:
        kernel_s, emulated_s = [], []
        for _ in range(turns):
            kernel_s.append(_kernel_s(hosts, SPLITS[split]))
            emulated_s.append(_emulated_s(link, SPLITS[split]))
            say(f"{split}: {kernel_s[-1] * 1e3:.1f} ms kernel-shaped, {emulated_s[-1] * 1e3:.1f} ms emulated")
        found.append(Agreement(split, rate_mbit, seen, (latency_s, bandwidth), tuple(kernel_s), tuple(emulated_s)))
    return found


def _kernel_s(hosts: TwoHosts, split: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = ("-m", "plait", "generate", "--json", "--run", str(Path(folder, "run")), *split, *_ASKED)
        return _token_s(_said(hosts.torchrun(1, *command, timeout_s=_TIMEOUT_S)))


def _emulated_s(link: str, split: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = ("generate", "--json", "--emulate", link, "--run", str(Path(folder, "run")), *split, *_ASKED)
        done = subprocess.run(
            [sys.executable, "-m", "plait", *command],
            env={**namespaces.environment()},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        return _token_s(done.stdout)


def _token_s(said: str) -> float:
    result: dict[str, Any] = json.loads(said)
    return float(result["measured"]["time_per_token_s"])


def _said(finished: Sequence[namespaces.Finished]) -> str:
    assert not any(one.status for one in finished), "\n".join(one.stderr for one in finished)
    return finished[0].stdout


# --- the ranks that look at the link ------------------------------------------------------------------------


def seen_by(endpoint: Endpoint) -> Seen:
    """Both ranks call this."""
    other = 1 - endpoint.rank
    token_s = one_way_s(endpoint, other, TOKEN_BYTES)
    cost = measure_link(endpoint, other, epoch=1)
    return Seen(token_s, cost.latency_s, cost.bandwidth_bytes_per_s)


def main(here: Environment) -> None:
    torch.set_num_threads(1)
    with join(here, 2) as endpoint:
        seen = seen_by(endpoint)
    if here.rank == 0:
        sys.stdout.write(json.dumps(seen._asdict()))


if __name__ == "__main__":
    started = environment()
    assert started is not None, "torchrun starts this"
    main(started)
