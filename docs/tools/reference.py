"""Writes docs/reference/ from the code: `python docs/tools/reference.py`, or with --check only says what is stale."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reference_api import api_page
from reference_cli import cli_page
from reference_errors import errors_page
from reference_files import files_page
from reference_json import json_page
from reference_plans import actions_page, schedules_page

PLACE = Path(__file__).resolve().parents[1] / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "api.md": api_page,
    "actions.md": actions_page,
    "schedules.md": schedules_page,
    "files.md": files_page,
    "json.md": json_page,
    "errors.md": errors_page,
}

NOTE = "<!-- Made by `make reference` from the code: edits here are lost. -->\n\n"


def page(name: str) -> str:
    """The text of one page."""
    return NOTE + PAGES[name]().rstrip() + "\n"


def stale(names: Sequence[str] = tuple(PAGES)) -> list[str]:
    """The pages that are not what the code says now."""
    return [name for name in names if not (PLACE / name).is_file() or (PLACE / name).read_text() != page(name)]


def main(arguments: Sequence[str]) -> int:
    """Write the pages; with --check write none, and fail where one is stale."""
    if list(arguments) not in ([], ["--check"]):
        print(f"unknown: {' '.join(arguments)} (known: --check)", file=sys.stderr)
        return 2
    if arguments:
        found = stale()
        for name in found:
            print(f"docs/reference/{name} is not what the code says; type: make reference", file=sys.stderr)
        return 1 if found else 0
    PLACE.mkdir(exist_ok=True)
    for name in PAGES:
        (PLACE / name).write_text(page(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
