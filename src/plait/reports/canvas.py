"""What all pictures by matplotlib share: a figure without global state, PNG or SVG by the file's name, the same bytes
every time.

An SVG holds its words as words, and its ids begin with a word of its own, so that several can stand in one page.
"""

from __future__ import annotations

import hashlib
import io
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
PNG_DPI = 200
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "plait",
    "font.family": ["DejaVu Sans"],
    "text.usetex": False,
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "path.simplify": False,
}
"""What a person's own matplotlibrc must not change."""


def picture_suffix(path: Path) -> str:
    """``.png`` or ``.svg``. Errors: UsageError for any other, and where matplotlib is missing."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        given = f"{suffix} is no format of pictures" if suffix else "the name says no format"
        raise UsageError(
            f"cannot draw {path}: {given}; known are {' and '.join(SUFFIXES)}: give a name such as "
            f"{path.with_suffix('.svg').name}"
        )
    require_matplotlib()
    return suffix


def require_matplotlib() -> None:
    """Errors: UsageError where it is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            "pictures need matplotlib, which is not installed; pip install 'plait[report]' adds it, and the "
            "terminal's report needs none"
        ) from None


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure that pyplot knows nothing of."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), facecolor="white")


@contextmanager
def settings() -> Iterator[None]:
    """While it is entered, matplotlib draws as Plait does, whatever a person's own settings are."""
    import matplotlib

    settings: Any = matplotlib.rcParams
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings.update(_SETTINGS)
        yield


def save(figure: Figure, path: Path, title: str, description: str) -> None:
    """Write the figure; an SVG with a title and a description. Errors: UsageError where it cannot be written."""
    suffix = picture_suffix(path)
    if suffix == ".svg":
        data = f'<?xml version="1.0" encoding="utf-8"?>\n{svg_text(figure, title, description)}\n'.encode()
    else:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=PNG_DPI, metadata={"Software": None, "Title": title})
        data = buffer.getvalue()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; give another place") from error


def svg_text(figure: Figure, title: str, description: str) -> str:
    """An SVG element that can stand in a page: without a date, with ids of its own, named for screen readers."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ET.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in [one for one in parent if _local(one.tag) in ("metadata", "style")]:
            parent.remove(child)
    word = hashlib.sha256(title.encode() + buffer.getvalue()).hexdigest()[:8]
    for element in root.iter():
        _make_own(element, word)
    _name(root, word, title, description)
    return ET.tostring(root, encoding="unicode")


def _make_own(element: ET.Element, word: str) -> None:
    """Plain names of tags and attributes, and ids that no other picture of a page has."""
    element.tag = _local(element.tag)
    for key in list(element.attrib):
        value = element.attrib.pop(key)
        if key == "id":
            value = f"{word}-{value}"
        elif _local(key) == "href" and value.startswith("#"):
            value = f"#{word}-{value[1:]}"
        element.set(_local(key), value.replace("url(#", f"url(#{word}-"))


def _name(root: ET.Element, word: str, title: str, description: str) -> None:
    """A title, a description, a role; and how lines join, which matplotlib says in a style for the whole page."""
    attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "id": f"{word}-picture",
        "role": "img",
        "style": "max-width: 100%; height: auto",
        "aria-labelledby": f"{word}-title {word}-description",
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    for key, value in attributes.items():
        root.set(key, value)
    for index, (tag, words) in enumerate((("title", title), ("desc", description))):
        child = ET.Element(tag, {"id": f"{word}-{'title' if tag == 'title' else 'description'}"})
        child.text = words
        root.insert(index, child)


def _local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]
