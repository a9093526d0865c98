"""Writes docs/validation.md: `python -m plait.validator.page [FILE]`."""

from __future__ import annotations

import sys
from pathlib import Path

from plait.validator.markdown import validation_markdown
from plait.validator.validate import validate_tables


def main() -> None:
    """All tables that come with Plait, into the file, by default docs/validation.md."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/validation.md")
    path.write_text(validation_markdown(validate_tables()), encoding="utf-8")
    sys.stderr.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
