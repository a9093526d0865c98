"""docs/reference is what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from .tools import DOCS, tool

reference = tool("reference")
keys_of = tool("reference_json").keys_of
writing = tool("writing")


@pytest.mark.parametrize("name", list(reference.PAGES))
def test_a_page_is_fresh(name: str) -> None:
    assert (DOCS / "reference" / name).read_text() == reference.page(name), "type: make reference"


def test_no_page_is_left_over() -> None:
    assert {page.name for page in (DOCS / "reference").glob("*.md")} == set(reference.PAGES)


def test_a_stale_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PLACE", tmp_path)
    assert reference.stale(["errors.md"]) == ["errors.md"]
    (tmp_path / "errors.md").write_text(reference.page("errors.md"))
    assert reference.stale(["errors.md"]) == []
    (tmp_path / "errors.md").write_text(reference.page("errors.md").replace("PeerLost", "PeerGone"))
    assert reference.stale(["errors.md"]) == ["errors.md"]


def test_a_wrong_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--chekc"]) == 2
    assert capsys.readouterr().err == "unknown: --chekc (known: --check)\n"


def test_keys_of_an_object() -> None:
    value = {"a": 1, "b": [{"c": None}, {"c": "x", "d": True}], "e": {"0": 1.5, "desk.0": 2}, "f": []}
    assert keys_of(value) == [
        ("a", "number"),
        ("b", "list"),
        ("b[]", "object"),
        ("b[].c", "text or null"),
        ("b[].d", "true or false"),
        ("e", "object"),
        ("e.*", "number"),
        ("f", "list"),
    ]


def test_cells_cannot_end_a_table_or_begin_a_tag() -> None:
    assert writing.cell("a | b\n<c> `<d>`") == "a \\| b &lt;c> `<d>`"
    assert writing.table(("x", "y"), [("1", "2")]) == "| x | y |\n|---|---|\n| 1 | 2 |"


def test_the_cli_page_has_every_option_that_help_shows() -> None:
    from typer.main import get_command

    from plait.cli.main import app

    text = (DOCS / "reference" / "cli.md").read_text()
    for name, command in get_command(app).commands.items():
        section = text.split(f"\n## plait {name}\n")[1].split("\n## ")[0]
        for option in command.params:
            if option.name != "help" and option.param_type_name == "option" and not option.hidden:
                assert all(f"`{word}`" in section for word in (*option.opts, *option.secondary_opts)), option.name
