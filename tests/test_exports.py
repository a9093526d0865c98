"""The public names, and that they cost nothing until they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import plait


@pytest.mark.parametrize("name", plait.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(plait, name).__doc__


def test_no_other_name() -> None:
    with pytest.raises(AttributeError) as error:
        plait.generat  # noqa: B018
    assert str(error.value) == "module 'plait' has no attribute 'generat'"
    assert dir(plait) == sorted(plait.__all__)


def test_importing_plait_and_its_simulator_imports_no_torch() -> None:
    code = "import sys, plait; plait.simulate; plait.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
