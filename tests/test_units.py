import pytest

from plait.units import format_bytes, format_rate, format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12.3 ms"),
        (0.00099999, "1 ms"),
        (0.000_012_34, "12.3 µs"),
        (1.0, "1 s"),
        (999.96, "1000 s"),
        (1234.4, "1234 s"),
        (0.0, "0 µs"),
        (2e-9, "0.002 µs"),
        (-0.5, "-500 ms"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB"), (2**60, "1024.0 PiB")]
)
def test_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(4.8e12, "4.8 TB/s"), (1.5e9, "1.5 GB/s"), (125e6, "125 MB/s"), (10, "10 B/s")]
)
def test_rates(rate: float, text: str) -> None:
    assert format_rate(rate) == text
