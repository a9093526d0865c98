"""The links of a cluster as a matrix of the terminal and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from plait.errors import UsageError
from plait.reports.link_matrix import link_matrix, shortened, spread_words
from plait.reports.link_picture import draw_links
from plait.reports.marks import ASCII
from plait.reports.probe_page import probe_page
from plait.spec.cluster import Cluster, Device, Host, Link, Network, Wire, WireSpread

TWO = Cluster(
    (Host("desk"), Host("laptop")),
    (
        Device("desk-cpu", "desk", 8 << 30, {"float32": 50e9}, 8e9, None, "cpu", {"float32": 0.02}),
        Device("laptop-cpu", "laptop", 4 << 30, {"float32": 20e9, "bfloat16": 44.4e9}, 7e9),
    ),
    (
        Link("desk-cpu", "laptop-cpu", 2e-4, 1.17e8, WireSpread(0.12, 0.01)),
        Link("laptop-cpu", "desk-cpu", 2.5e-4, 1e7, WireSpread(1.5, 0.0)),
    ),
)


def many(count: int) -> Cluster:
    names = [f"host-with-a-long-name.{number}" for number in range(count)]
    devices = tuple(Device(name, "h", 1, {"float32": 1.0}, 1.0) for name in names)
    return Cluster((Host("h"),), devices, tuple(Link(*pair, 5e-6, 1e9) for pair in permutations(names, 2)))


def test_two_devices() -> None:
    assert link_matrix(TWO).plain.splitlines() == [
        "latency, bandwidth         to desk-cpu     to laptop-cpu",
        "from desk-cpu                              200 µs ± 12 %",
        "                                          117 MB/s ± 1 %",
        "from laptop-cpu         250 µs ± >99 %                  ",
        "                               10 MB/s                  ",
    ]


def test_ascii() -> None:
    plain = link_matrix(TWO, 80, ASCII).plain
    assert plain.isascii()
    assert "200 us +- 12 %" in plain


@pytest.mark.parametrize("width", [40, 80, 100])
def test_columns_that_do_not_fit_stand_below(width: int) -> None:
    lines = link_matrix(many(9), width).plain.splitlines()
    assert max(map(len, lines)) <= max(80, width)
    assert sum("1 GB/s" in line for line in lines) >= 9 * 2
    assert "".join(lines).count("1 GB/s") == 9 * 8
    assert lines[0].count("to ") == (80 - 20) // 14 if width < 100 else (100 - 20) // 14


def test_names_keep_their_ends() -> None:
    assert shortened("host-with-a-long-name.12", 10) == "host…me.12"
    assert shortened("short", 10) == "short"


def test_one_device_and_very_many() -> None:
    assert link_matrix(many(1)).plain == "one device: no links"
    wire = Wire(1e-6, 1e9)
    names = [Device(f"d{number}", "h", 1, {"float32": 1.0}, 1.0) for number in range(70)]
    text = link_matrix(Cluster((Host("h"),), tuple(names), (), Network(wire, wire))).plain
    assert text.splitlines()[-1] == "6 of 70 devices are not shown"


def test_spread_words() -> None:
    assert [spread_words(part) for part in (0.0, 0.004, 0.0123, 0.5, 8.31)] == [
        "", " ± 0.4 %", " ± 1.2 %", " ± 50 %", " ± >99 %",
    ]  # fmt: skip


def test_page() -> None:
    page = probe_page(TWO, ["a note of several words " * 5], ["doubtful"], 80).plain.splitlines()
    assert page[:4] == [
        "device             memory      its bandwidth   GFLOP/s float32  GFLOP/s bfloat16",
        "desk-cpu          8.0 GiB             8 GB/s          50 ± 2 %                 -",
        "laptop-cpu        4.0 GiB             7 GB/s                20              44.4",
        "",
    ]
    assert page[-3:] == [
        "a note of several words a note of several words a note of several words a note",
        "  of several words a note of several words",
        "doubtful",
    ]
    assert max(map(len, page)) <= 80
    alone = replace(TWO, devices=TWO.devices[:1], links=())
    assert probe_page(alone, [], [], 80, ASCII).plain.splitlines()[-1].startswith("desk-cpu")


def test_picture(tmp_path: Path) -> None:
    draw_links(TWO, tmp_path / "links.svg")
    text = (tmp_path / "links.svg").read_text()
    words = "".join(ET.fromstring(text).itertext())
    for word in ("Latency", "Bandwidth", "200 µs", "250 µs", "117 MB/s", "10 MB/s", "to desk-cpu", "from laptop-cpu"):
        assert word in words
    draw_links(TWO, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text
    draw_links(many(20), tmp_path / "links.png")
    assert (tmp_path / "links.png").read_bytes().startswith(b"\x89PNG")


def test_equal_links_and_free_ones_have_a_colour(tmp_path: Path) -> None:
    free = Wire(0.0, 1e30)
    draw_links(replace(many(3), links=(), network=Network(free, free)), tmp_path / "free.svg")


def test_no_picture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.gif is no format of pictures"):
        draw_links(TWO, tmp_path / "links.gif")
    with pytest.raises(UsageError) as caught:
        draw_links(many(1), Path("links.svg"))
    assert str(caught.value) == (
        "links.svg would show links, and one device has none: measure several, as in --ranks 2"
    )
