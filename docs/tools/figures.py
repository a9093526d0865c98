"""Measures and draws everything in docs/figures again, and writes the numbers into the pages: `make figures`.

    python docs/tools/figures.py                          all of it, about 15 minutes on two quiet cores
    python docs/tools/figures.py --results lab/results.json    what `plait lab --all -o lab` has measured already
    python docs/tools/figures.py --skip-lab                    the pictures of reports alone
    python docs/tools/figures.py --again braid --again quiz    these experiments alone, the others as they are

Needs the demo model and a Chromium. Exits with 1 where a figure of the lab is outside its bound; all is written anyway.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import reference
from fill import FIGURES, RESULTS, write
from reference_json import KEPT, keys_of
from screenshot import find_browser, screenshot

from plait.errors import PlaitError, SpecError
from plait.lab.experiments import EXPERIMENTS, chosen
from plait.lab.results import Results, read_results, still_missing, write_results
from plait.lab.words import ending


class Shot(NamedTuple):
    """A picture of a page as a browser shows it: a file of docs/figures."""

    file: str
    width: int = 1280
    height: int = 860
    dark: bool = False


class Picture(NamedTuple):
    """A run (or a plan), and the pictures of its report. `run`: as typed; it writes to PLACE. `still`: an SVG."""

    name: str
    run: str
    shots: tuple[Shot, ...]
    still: str = ""


PICTURES = (
    Picture(
        "train",
        "train --model llama:layers=4,hidden=256,heads=4 --data TEXT --dp 2 --pp 2 --micro-batches 4 --steps 8 "
        "--timeline 6 --run PLACE --json",
        (Shot("report.png", height=900), Shot("report-dark.png", dark=True), Shot("report-390.png", 390, 844)),
        "train.svg",
    ),
    Picture(
        "generate",
        "generate 'Why is the sky blue?' --pp 2 --users 4 --schedule pipelined --micro-batches 2 --max-tokens 16 "
        "--run PLACE --json",
        (Shot("report-generate.png"),),
    ),
    Picture(
        "plan",
        "plan gpt3-175b --cluster a100 --gpus 64 --task train --batch 64 -o PLACE --json",
        (Shot("report-plan.png"),),
    ),
)

ALSO_JSON = (
    "report PLACE --json",
    "certify --dp 2 --pp 2 --json",
    "probe --seconds 4 --json",
    "lab pipeline --short --json",
)
"""Commands whose JSON keys are kept beside those of the runs; PLACE is the run of generation."""


def plait(folder: Path, *arguments: str) -> str:
    """What the command writes to stdout. Errors: RuntimeError, with its words.

    Its cache is in `folder`: figures of this machine that were kept from a busy time would spoil what is predicted.
    """
    command = [sys.executable, "-m", "plait", *arguments]
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"plait {' '.join(arguments)} ended with {ran.returncode}:\n{ran.stderr}")
    return ran.stdout


def measure(folder: Path, names: Sequence[str] = ("--all",)) -> Path:
    """Run the lab; its results. Figures outside their bounds are not an error here."""
    subprocess.run([sys.executable, "-m", "plait", "lab", *names, "-o", str(folder)], check=False, stdout=sys.stderr)
    return folder / "results.json"


def merged(old: Results, new: Results) -> Results:
    """The newer outcomes in the place of the older. Errors: SpecError where they are of two machines or sizes."""
    if (old.host, old.size) != (new.host, new.size):
        raise SpecError(
            f"results of {new.host} ({new.size}) cannot stand beside those of {old.host} ({old.size}): "
            "measure all of them, make figures"
        )
    again = {one.experiment for one in (*new.outcomes, *new.broken)}
    outcomes = {one.experiment: one for one in (*old.outcomes, *new.outcomes)}
    broken = (*(one for one in old.broken if one.experiment not in again), *new.broken)
    lost = {one.experiment for one in broken}
    kept = tuple(outcomes[name] for name in EXPERIMENTS if name in outcomes and name not in lost)
    missing = still_missing(lost.union(outcomes), old.missing, new.missing)
    return replace(new, outcomes=kept, broken=broken, missing=missing)


def draw(folder: Path) -> dict[str, Any]:
    """Make the runs and their pictures; the JSON of each command."""
    said: dict[str, Any] = {}
    for one in PICTURES:
        place = folder / (f"{one.name}.toml" if one.name == "plan" else one.name)
        said[one.run.replace("PLACE", "PLAN" if one.name == "plan" else "RUN")] = _ran(one.run, folder, place)
        _report(one, folder, place)
    for command in ALSO_JSON:
        said[command.replace("PLACE", "RUN")] = _ran(command, folder, folder / "generate")
    return said


def _ran(command: str, folder: Path, place: Path) -> Any:
    """What the command says, as data; of one object a line, the last."""
    print(f"plait {command}", file=sys.stderr)
    names = {"PLACE": str(place), "TEXT": pydoc_data.topics.__file__}
    text = plait(folder, *(names.get(word, word) for word in shlex.split(command)))
    return json.loads(text.splitlines()[-1])


def _report(one: Picture, folder: Path, place: Path) -> None:
    page = folder / f"{one.name}.html"
    still = ("--svg", str(FIGURES / one.still)) if one.still else ()
    plait(folder, "report", str(place), "-o", str(page), *still)
    for shot in one.shots:
        screenshot(page, FIGURES / shot.file, shot.width, shot.height, dark=shot.dark)


def make(asked: argparse.Namespace) -> int:
    """Measure, draw and fill. Errors: FileNotFoundError without a browser; PlaitError for results that are none."""
    find_browser()  # before ten minutes of measuring
    if asked.results is not None:
        read_results(asked.results)
    chosen(asked.again)
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if asked.again:
            new = read_results(measure(Path(folder, "lab"), asked.again))
            write_results(merged(read_results(RESULTS), new), RESULTS)
        elif not asked.skip_lab:
            shutil.copyfile(asked.results or measure(Path(folder, "lab")), RESULTS)
        if not asked.again:
            said = draw(Path(folder))
            keys = {command: keys_of(value) for command, value in said.items()}
            KEPT.write_text(json.dumps(keys, indent=1) + "\n", encoding="utf-8")
    results = read_results(RESULTS)
    write(results)
    reference.main([])
    for line in ending(results):
        print(line, file=sys.stderr)
    return 0 if results.holds else 1


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, help="results.json of the lab, instead of measuring")
    parser.add_argument("--skip-lab", action="store_true", help="keep the lab's figures that are there")
    parser.add_argument("--again", action="append", default=[], metavar="NAME", help="measure this experiment alone")
    try:
        return make(parser.parse_args(arguments))
    except (PlaitError, FileNotFoundError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
