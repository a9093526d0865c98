"""Writes docs/validation.md: `python -m plait.validator.page [FILE]`."""

from __future__ import annotations

import sys
from pathlib import Path

from plait.validator.markdown import validation_markdown
from plait.validator.validate import known_tables, validate_tables


def main() -> None:
    """All tables that come with Plait, into the file, by default docs/validation.md."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/validation.md")
    path.write_text(validation_markdown(validate_tables()) + sorts_markdown(), encoding="utf-8")
    sys.stderr.write(f"wrote {path}\n")


def sorts_markdown() -> str:
    """What a table of one's own must have to be compared."""
    lines = [
        "",
        "## Tables of your own",
        "",
        "`plait validate mine.csv` knows a table by its columns, in any order, with any further ones, and spelled as",
        "other people do (`# GPUs`, `hidden size`, `iteration time (ms)`). A column `device`, or a line",
        "`# hardware: ...` before the header, says what was measured; training on another device than A100 is",
        "predicted from its data sheet and marked as not calibrated. The sorts, and what each needs:",
        "",
        "| like | columns |",
        "|---|---|",
    ]
    for known in known_tables():
        one_of = f"; one of {', '.join(sorted(known.one_of))}" if known.one_of else ""
        lines.append(f"| {known.name} | {', '.join(sorted(known.columns))}{one_of} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
