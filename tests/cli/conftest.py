"""The command as a person has it: a process of its own, with its own cache and state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Plait = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def plait(tmp_path_factory: pytest.TempPathFactory) -> Plait:
    home = tmp_path_factory.mktemp("home")
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }

    def run(*arguments: object, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "plait", *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=240, env={**environment, **changes}, check=False
        )

    return run


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "france"
