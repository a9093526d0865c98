"""Fills the concept pages: what the lab measured, from docs/figures/results.json, and what is worked out by code.

    python docs/tools/fill.py            write the charts and the pages
    python docs/tools/fill.py --check    only say what is stale

A page says where with markers; what stands between them is made here, and edits there are lost:

    <!-- lab:NAME:sentence -->…<!-- /lab -->      the experiment's sentence, with the numbers that were measured
    <!-- lab:NAME:checks -->…<!-- /lab -->        predicted, measured and bound of every figure
    <!-- lab:NAME:figures -->…<!-- /lab -->       its charts, docs/figures/NAME.svg, or NAME-1.svg and so on
    <!-- lab:NAME:table -->, :how, :formula, :notes
    <!-- lab:host -->…<!-- /lab -->               the machine, and when
    <!-- worked:NAME -->…<!-- /worked -->         a worked number of `worked.py`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from worked import WORKED
from writing import table

from plait.errors import PlaitError
from plait.lab.experiment import Outcome, Table
from plait.lab.experiments import EXPERIMENTS
from plait.lab.folder import chart_name
from plait.lab.results import Results, read_results
from plait.lab.words import checks_table
from plait.reports.charts import chart_svg

DOCS = Path(__file__).resolve().parents[1]
FIGURES = DOCS / "figures"
RESULTS = FIGURES / "results.json"
STILLS = ("train.svg",)
"""Made by `figures.py` of a real run; not the lab's."""

_LAB = re.compile(r"(<!-- lab:([\w-]+)(?::([\w-]+))? -->)(.*?)(<!-- /lab -->)", re.DOTALL)
_WORKED = re.compile(r"(<!-- worked:([\w-]+) -->)(.*?)(<!-- /worked -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page that has markers."""
    return sorted(page for page in DOCS.rglob("*.md") if re.search(r"<!-- (lab|worked):", page.read_text()))


def filled(text: str, results: Results, depth: int) -> str:
    """The page's text with what belongs between its markers. `depth`: folders between docs/ and the page.

    Errors: KeyError for a marker that nothing fills.
    """

    def lab(found: re.Match[str]) -> str:
        said = _host(results) if found[2] == "host" else _lab_words(found[2], found[3], results, depth)
        return f"{found[1]}\n{said}\n{found[5]}"

    def worked(found: re.Match[str]) -> str:
        return f"{found[1]}\n\n{_worked(found[2])}\n\n{found[4]}"

    return _WORKED.sub(worked, _LAB.sub(lab, text))


@lru_cache(maxsize=len(WORKED))
def _worked(name: str) -> str:
    """The same whatever was measured: the planner looks at each once."""
    return WORKED[name]()


def _host(results: Results) -> str:
    host = results.host
    return (
        f"{results.date}, {host.cpu}, {host.cores} cores, {host.system}; Python {host.python}, torch {host.torch}, "
        f"`plait lab --all`{' --short' if results.size == 'short' else ''}"
    )


def _lab_words(name: str, what: str, results: Results, depth: int) -> str:
    if what in ("how", "formula", "claim") and name in EXPERIMENTS:
        return f"\n{getattr(EXPERIMENTS[name], what)}\n"
    outcome = next((one for one in results.outcomes if one.experiment == name), None)
    if outcome is None:
        return f"\n*Not measured yet; `plait lab {name}` measures it.*\n"
    return _OUTCOME[what](outcome, depth)


def _sentence(outcome: Outcome, depth: int) -> str:
    return f"\n> {outcome.sentence}\n"


def _checks(outcome: Outcome, depth: int) -> str:
    """Every figure, folded: there may be fifty."""
    found = checks_table(outcome.checks)
    holding, count = sum(one.holds for one in outcome.checks), len(outcome.checks)
    kind, head = ("note", f"All {count}") if holding == count else ("failure", f"Only {holding} of {count}")
    return _folded(kind, f"{head} figures are within their bounds; each of them, predicted and measured", found)


def _table(outcome: Outcome, depth: int) -> str:
    return _folded("info", "What was measured", outcome.table)


def _folded(kind: str, title: str, found: Table) -> str:
    lines = table(found.headings, found.rows).splitlines()
    return "\n".join(["", f'??? {kind} "{title}"', "", *(f"    {line}" for line in lines), ""])


def _notes(outcome: Outcome, depth: int) -> str:
    return "\n" + "\n".join(f"- {note}" for note in outcome.notes) + "\n"


def _figures(outcome: Outcome, depth: int) -> str:
    """Markdown of its charts; the words beside a picture are its title, for those who do not see it."""
    up = "../" * depth
    lines = [
        f"![{_alt(chart.title)}]({up}figures/{name})"
        for name, chart in zip(chart_names(outcome), outcome.charts, strict=True)
    ]
    return "\n" + "\n\n".join(lines) + "\n"


def _alt(title: str) -> str:
    return title.replace("[", "(").replace("]", ")")


_OUTCOME: Mapping[str, Callable[[Outcome, int], str]] = {
    "sentence": _sentence,
    "checks": _checks,
    "table": _table,
    "notes": _notes,
    "figures": _figures,
}


def chart_names(outcome: Outcome) -> list[str]:
    """Files in docs/figures of an experiment's charts: named as `plait lab -o` names them."""
    count = len(outcome.charts)
    return [chart_name(outcome.experiment, index, count) for index in range(1, count + 1)]


def charts(results: Results) -> Iterator[tuple[str, str]]:
    """Name and text of every chart."""
    for outcome in results.outcomes:
        for name, chart in zip(chart_names(outcome), outcome.charts, strict=True):
            yield name, chart_svg(chart) + "\n"


def stale_pages(results: Results) -> list[Path]:
    """Pages that are not what the results and the formulas say."""
    return [page for page in pages() if page.read_text() != _page(page, results)]


def _page(page: Path, results: Results) -> str:
    return filled(page.read_text(), results, len(page.relative_to(DOCS).parts) - 1)


def write(results: Results) -> None:
    """Write charts and pages; a chart that no experiment has any more goes."""
    drawn = dict(charts(results))
    for old in FIGURES.glob("*.svg"):
        if old.name not in drawn and old.name not in STILLS:
            old.unlink()
    for name, text in drawn.items():
        (FIGURES / name).write_text(text, encoding="utf-8")
    for page in pages():
        page.write_text(_page(page, results), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Write, or with --check only compare."""
    if list(arguments) not in ([], ["--check"]):
        print(f"unknown: {' '.join(arguments)} (known: --check)", file=sys.stderr)
        return 2
    try:
        results = read_results(RESULTS)
    except PlaitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not arguments:
        write(results)
        return 0
    found = stale_pages(results)
    for page in found:
        print(f"docs/{page.relative_to(DOCS)} is stale; type: python docs/tools/fill.py", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
