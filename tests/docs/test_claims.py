"""What docs/security.md says of reports and files, held against the code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.main import app
from plait.errors import WeightsError
from plait.generation.forecast import forecast
from plait.plans.file import load_plan_file
from plait.reports.page.page import render_page
from plait.reports.view_of import make_view
from plait.weights.index import open_index


def test_a_report_page_holds_no_text_of_an_answer(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    made = CliRunner().invoke(app, ["plan", "llama3-8b", "--cluster", "home", "--max-tokens", "2", "-o", str(plan)])
    assert made.exit_code == 0, made.stderr
    record = forecast(load_plan_file(plan))
    tokens = record.result.get("requests", [{"tokens": [0, 0]}])
    told = [{**one, "prompt_tokens": 512, "text": "the butler did it", "finish_reason": "length"} for one in tokens]
    page = render_page(make_view(replace(record, result={**record.result, "requests": told})))
    assert "butler" not in page


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl"])
def test_a_pickled_checkpoint_is_refused_by_its_name(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"model{suffix}"
    file.write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(WeightsError, match="pickle"):
        open_index(file)
