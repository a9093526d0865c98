"""The first half works where torch is not installed: planning, simulating and drawing on a tiny install."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import plait

FIRST_HALF = (
    "spec",
    "plans",
    "schedules",
    "timeline",
    "costs",
    "simulator",
    "planner",
    "validator",
    "reports",
    "text",
)
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers"}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
"""


def modules(rooms: tuple[str, ...]) -> list[str]:
    root = Path(plait.__file__).parent
    found = ["plait.errors", "plait.units", *(f"plait.{room}" for room in rooms)]
    for room in rooms:
        found += [f"plait.{room}.{module.name}" for module in pkgutil.iter_modules([str(root / room)])]
    return found


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_first_half_without_torch() -> None:
    imports = "\n".join(f"import {name}" for name in modules(FIRST_HALF))
    done = run(f"{BLOCK}\n{imports}\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_the_block_blocks() -> None:
    done = run(f"{BLOCK}\nimport torch")
    assert done.returncode == 1
    assert "ImportError: torch is blocked" in done.stderr


def test_planning_simulating_validating_and_listing_without_torch(tmp_path: Path) -> None:
    """The whole way of the commands, of a model of 10^12 parameters: no weights, no download, no torch."""
    plan = tmp_path / "plan.toml"
    train = ("--cluster", "a100", "--gpus", "512", "--task", "train", "--batch", "512", "-o", str(plan), "--json")
    commands = [
        ("plan", "--list"),
        ("plan", "gpt-1t", *train),
        ("simulate", str(plan), "--json"),
        ("plan", "llama3-70b", "--cluster", "home", "--weights", "q4_0", "-o", str(plan), "--json"),
        ("simulate", str(plan), "--json"),
        ("validate", "megatron2021_table1", "--json"),
        ("lab",),
        ("lab", "--list", "--json"),
    ]
    for command in commands:
        done = run(f"{BLOCK}\nimport sys\nfrom plait.cli.main import main\nsys.argv = ['plait', *{command!r}]\nmain()")
        assert done.returncode == 0, f"plait {' '.join(command)}: {done.stderr}"
        assert done.stdout


def test_every_module_imports() -> None:
    rooms = tuple(path.name for path in Path(plait.__file__).parent.iterdir() if (path / "__init__.py").is_file())
    done = run("\n".join(f"import {name}" for name in modules(rooms)))
    assert done.returncode == 0, done.stderr
