"""The generators of the docs, which lie beside the docs and not in a package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def tool(name: str) -> Any:
    """A module of docs/tools; they import each other by their plain names, as scripts do."""
    place = str(DOCS / "tools")
    if place not in sys.path:
        sys.path.append(place)
    return import_module(name)
