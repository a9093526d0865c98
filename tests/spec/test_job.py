from __future__ import annotations

from pathlib import Path

import pytest

from plait.errors import SpecError
from plait.spec.job import Job, job_from_toml, read_job


def test_a_job_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("prompt_tokens = 100\nmax_tokens = 28\nusers = 4\n")
    job = read_job(path)
    assert job == Job(prompt_tokens=100, max_tokens=28, users=4)
    assert job.positions == 128
    assert Job(1, 1, context=64).positions == 64


def test_faults_are_all_named() -> None:
    with pytest.raises(SpecError) as caught:
        job_from_toml({"prompt_token": 3, "max_tokens": 0, "task": "train"})
    assert str(caught.value) == (
        "job has 4 faults:\n"
        "  task is 'train': input should be 'generate'\n"
        "  key 'prompt_tokens' is missing\n"
        "  max_tokens is 0: input should be greater than 0\n"
        "  unknown key 'prompt_token': did you mean 'prompt_tokens'?"
    )


def test_a_context_that_is_too_small() -> None:
    with pytest.raises(SpecError) as caught:
        Job(prompt_tokens=100, max_tokens=50, context=128)
    assert str(caught.value) == (
        "job: context is 128 positions, and a prompt of 100 and an answer of 50 tokens need 150: 22 more"
    )
    with pytest.raises(SpecError) as caught:
        Job(prompt_tokens=100, max_tokens=50, users=0)
    assert str(caught.value) == "job: users is 0, but must be at least 1"


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_job(tmp_path / "job.toml")
    assert str(caught.value) == f"job file {tmp_path}/job.toml: no such file"
