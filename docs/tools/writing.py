"""What all generated pages share: tables, cells and docstrings in Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are escaped."""
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text that does not end its cell, nor begin a tag."""
    plain = " ".join(text.split())
    parts = re.split(r"(`[^`]*`)", plain)
    safe = [part if part.startswith("`") else part.replace("<", "&lt;") for part in parts]
    return "".join(safe).replace("|", "\\|")


def code(text: str) -> str:
    """Inline code."""
    return f"`{text}`"


def prose(item: object) -> str:
    """A docstring as paragraphs; indented blocks stay code, and a picture right below its caption becomes code."""
    text = inspect.getdoc(item) or ""
    return _outside_code(text)


def _outside_code(text: str) -> str:
    """``double`` ticks as single, and `<` escaped, but not inside indented blocks or ticks."""
    lines = []
    for line in text.splitlines():
        if line.startswith("    "):
            lines.append(line)
            continue
        parts = re.split(r"(`[^`]+`)", line.replace("``", "`"))
        lines.append("".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts))
    return "\n".join(lines)
