from __future__ import annotations

from plait.planner.placement import cut_of, devices_in_order, training_layout
from plait.plans.split import Split, TrainingSetup

from .training_clusters import cluster


def test_tensor_groups_are_neighbours_and_positions_farthest_apart() -> None:
    machines = cluster(4, 4)
    names = devices_in_order(machines)
    hosts = [machines.device(name).host for name in names]
    setup = TrainingSetup(Split(dp=2, pp=2, tp=4), "1f1b", 1, 8)
    layout = training_layout(setup, cut_of([3, 5]), names, "bfloat16", hosts)
    assert layout.cut == ((0, 3), (3, 8))
    assert dict(layout.axes) == {"dp": 2, "pp": 2, "tp": 4}
    assert [stage.ranks for stage in layout.stages] == [tuple(range(8)), tuple(range(8, 16))]
    assert layout.stages[0].devices[:4] == ("gpu-0.0", "gpu-0.1", "gpu-0.2", "gpu-0.3")
    assert layout.stages[1].host == "host-2"


def test_stages_of_one_position_share_its_ranks() -> None:
    machines = cluster(1, 4)
    names, hosts = devices_in_order(machines), ["host-0"] * 4
    for schedule, held in (("interleaved", ((0, 2), (1, 3))), ("zb-v", ((0, 3), (1, 2)))):
        setup = TrainingSetup(Split(pp=2, tp=2), schedule, 1, 8, virtual=2)
        layout = training_layout(setup, cut_of([2, 2, 2, 2]), names, "bfloat16", hosts)
        assert layout.positions == held
