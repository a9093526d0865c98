"""Printing of SI figures. Code holds bytes, seconds and FLOP; only printing turns them into GiB or ms."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(count_bytes: float) -> str:
    """``1536`` becomes ``1.5 KiB``."""
    size = float(count_bytes)
    for unit in _BINARY:
        if abs(size) < 1024 or unit == _BINARY[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_seconds(duration_s: float) -> str:
    """Three digits: ``0.0123`` becomes ``12.3 ms``, ``0.0009999`` becomes ``1 ms``."""
    rounded_s = float(f"{duration_s:.3g}")
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(rounded_s) * factor >= 1 or unit == "µs":
            value = rounded_s * factor
            return f"{value:.3g} {unit}" if abs(value) < 1000 else f"{duration_s:.0f} {unit}"
    raise AssertionError("unreachable")


def format_rate(bytes_per_s: float) -> str:
    """``1.5e9`` becomes ``1.5 GB/s`` (decimal, as links are sold)."""
    for factor, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:.3g} {unit}"
    return f"{bytes_per_s:.3g} B/s"
