"""No device is in a plan twice, whatever the sizes of groups and hosts."""

import pytest

from plait.planner.serving import plan_serving
from plait.spec.job import Job
from plait.spec.presets import cluster_preset, model_preset


@pytest.mark.parametrize(
    ("cluster", "gpus"), [("raspberry-pi-5", 4), ("raspberry-pi-5", 6), ("rtx-4090", 8), ("h100", 5)]
)
@pytest.mark.parametrize("users", [1, 4])
def test_every_device_is_used_once(cluster: str, gpus: int, users: int) -> None:
    job = Job(64, 32, users)
    choice = plan_serving(model_preset("llama3.2-3b"), cluster_preset(cluster, gpus), job, weights="q4_0")
    for candidate in choice.candidates:
        names = [name for stage in candidate.devices for name in stage]
        assert len(names) == len(set(names)), candidate.devices
        assert len(names) == candidate.split.ranks
