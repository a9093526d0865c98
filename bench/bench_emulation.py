"""Emulated links beside those that the kernel shapes: seconds a token of the demo model, at 1 Gb/s and 100 Mb/s."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import table, verdict

sys.path.insert(0, str(Path(__file__).parents[1]))  # the hosts, and the comparison, are those of the tests

from tests.generation.agreement import BURSTS, SPLITS, Agreement, agreement
from tests.generation.namespaces import NoHosts, two_hosts

TURNS = 7
WITHIN = 0.1

HEADINGS = ("split", "kernel-shaped link", "emulated as", "kernel, ms a token", "emulated, ms a token", "ratio", "off")


def say(text: str) -> None:
    """Progress."""
    sys.stderr.write(f"{text}\n")


def row(one: Agreement) -> Sequence[object]:
    """A line of the table."""
    latency_s, bandwidth = one.asked
    kernel, emulated = (f"{1e3 * statistics.median(seconds):.1f}" for seconds in (one.kernel_s, one.emulated_s))
    off = verdict(100 * abs(one.ratio - 1), 100 * WITHIN, " %", at_most=True)
    link = f"{bandwidth * 8e-6:.1f} Mb/s, {latency_s * 1e6:.0f} µs"
    return one.split, f"{one.rate_mbit} Mb/s", link, kernel, emulated, one.ratio, off


def seen_words(one: Agreement) -> str:
    """What the kernel's link looked like to ranks."""
    seen = one.seen
    return (
        f"{one.rate_mbit} Mb/s, as ranks see it: {seen.token_s * 1e6:.0f} µs one way for a token's message; through "
        f"several sizes {seen.latency_s * 1e6:.0f} µs and {seen.bandwidth_bytes_per_s * 8e-6:.0f} Mb/s."
    )


def main() -> int:
    """Compare, and print."""
    print("## Emulated links\n")
    print(
        "One rank on each of two network namespaces, over a link that the kernel shapes (tbf, a small burst),\n"
        "and in turns the same over the link that `--emulate` emulates: with 1,448 of every 1,514 bytes of that rate,\n"
        f"and the latency that ranks see over the kernel's. Medians of {TURNS} runs.\n"
    )
    found: list[Agreement] = []
    try:
        for rate in BURSTS:
            with two_hosts(f"{rate}mbit", BURSTS[rate]) as hosts:
                found += agreement(hosts, rate, tuple(SPLITS), TURNS, say)
    except NoHosts as error:
        print(f"Not measured: {error}.")
        return 0
    print(table(HEADINGS, [row(one) for one in found]))
    print()
    print("\n".join(dict.fromkeys(map(seen_words, found))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
