"""Calibrations of a tiny model: complete, quick, kept, and measured again where the file cannot be used."""

from __future__ import annotations

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from plait.comm.tensor_group import EndpointGroup
from plait.comm.threads import thread_mesh
from plait.costs.calibration import Calibration, read
from plait.costs.curves import Curve
from plait.costs.exchange_times import ExchangeTimes
from plait.costs.measured import Kernel
from plait.costs.protocol import FREE, LinkCost
from plait.errors import PlanError, RunError
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row
from plait.prober import calibrate as module
from plait.prober.calibrate import calibrate, calibration_path
from plait.prober.child import Bench, largest_shard
from plait.prober.host import TRUSTED_S
from plait.prober.local import local_costs
from plait.prober.messages import Alone, Beside, Job, Work
from plait.spec.model import ModelSpec, Rope

TINY = ModelSpec("tiny", "llama", 4, 64, 4, 2, 16, 128, 100, 512, 1e-5, Rope(1e4, 16), (None,) * 4)


ONE = Kernel("float32", "float32", 1)
HALF = Kernel("bfloat16", "bfloat16", 1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    return tmp_path / "plait"


@pytest.fixture(scope="module")
def measured() -> Calibration:
    return module._measure(TINY, module._setting(TINY, ONE, 1, 1))


@pytest.fixture
def no_measuring(measured: Calibration, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calibrations come from here at once; the list says which dtypes were asked for."""
    asked: list[str] = []

    def measure(spec: ModelSpec, setting: object) -> Calibration:
        asked.append(setting.dtype)  # type: ignore[attr-defined]
        return replace(measured, setting=setting)

    monkeypatch.setattr(module, "_measure", measure)
    return asked


def test_a_tiny_model_alone_and_beside_another() -> None:
    calibration = calibrate(TINY, ONE, concurrent=2, rows=4)
    token = MicroBatch(tuple(Row(i, i, 100, 1, True) for i in range(4)))
    chunk = MicroBatch((Row(0, 0, 0, 128, False),))
    for work in (token, chunk):
        middle, last = (calibration.forward_s(work, 2, is_last=is_last) for is_last in (False, True))
        assert 1e-6 < middle < 0.1
        assert 1e-6 < last < 0.1
    assert calibration.decode_s.at == (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
    assert [one.ranks for one in calibration.together] == [2]
    assert calibration.slowdown(1, 1) == 1.0
    assert read(calibration_path(calibration.setting)) == calibration


@pytest.mark.parametrize("family", ["gpt2", "olmo2", "qwen3"])
def test_other_families(family: str) -> None:
    changed = {
        "gpt2": {"rope": None, "norm": "layer", "mlp": "plain", "kv_heads": 4, "qkv_bias": True, "tied": True},
        "olmo2": {"norm_placement": "post", "qk_norm": "full"},
        "qwen3": {"qk_norm": "head", "layers": 1, "windows": (64,)},
    }[family]
    spec = replace(TINY, family=family, **changed)
    assert calibrate(spec, HALF).setting.layers >= 3


@pytest.mark.parametrize("family", ["llama", "gpt2", "olmo2"])
@pytest.mark.parametrize(("tp", "sequence"), [(2, False), (2, True), (5, True)])
def test_a_rank_of_a_tensor_group_computes_without_the_others(family: str, tp: int, sequence: bool) -> None:
    """Five ranks share four heads: the one that is measured has one, another none."""
    changed = {
        "llama": {},
        "gpt2": {"rope": None, "norm": "layer", "mlp": "plain", "kv_heads": 4, "qkv_bias": True, "tied": True},
        "olmo2": {"norm_placement": "post", "qk_norm": "full"},
    }[family]
    job = Job(replace(TINY, family=family, **changed), "float32", 1, 1, 4, 2, 192, 1, tp, (), sequence)
    works = (Work(2, 1, 63), Work(1, 64, 64), Work(1, 64, 64, False))
    with torch.inference_mode():
        bench = Bench(job)
        timed = [bench.alone(Alone((work,), 1, 0.0))[0] for work in works]
    assert all(min(one.layer_s, one.last_s) > 0 for one in timed)


def test_the_ranks_of_a_group_go_in_step_and_exchanges_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanges take an hour each on this clock; all ranks go on until the last has had enough."""
    job = Job(TINY, "float32", 1, 2, 0, 1, 192, 1, 2)
    clocks = [0.0, 0.0]

    def clock(rank: int) -> float:
        clocks[rank] += 3600.0
        return clocks[rank]

    benches = [Bench(job) for _ in range(2)]
    for rank, (bench, endpoint) in enumerate(zip(benches, thread_mesh(2, 2), strict=True)):
        assert bench._part is not None
        real = EndpointGroup(endpoint, (0, 1), record=True, clock=functools.partial(clock, rank))
        bench._part.group.index = rank
        bench._part.group._real = real
        bench._share.model.shard = replace(bench._part.shard, index=rank)
    started_s = time.monotonic()
    asked = [Beside(Work(1, 1, 63), 0.0, started_s + more_s) for more_s in (0.0, 0.3)]
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(bench.beside, request) for bench, request in zip(benches, asked, strict=True)]
        taken = [one.result(60) for one in found]
    assert time.monotonic() - started_s >= 0.3
    assert len(taken[0]) == len(taken[1]) > 1
    exchanges = 1 + 2 * 2  # of the entry, and two in each of two layers
    assert all(-3600.0 * exchanges / 2 < seconds < -3600.0 * exchanges / 2 + 60 for seconds in taken[1])


def test_the_largest_shard_is_measured() -> None:
    """Four heads over three ranks: the first has two. By shares, the last has most."""
    assert largest_shard(TINY, 3, (), "float32").index == 0
    assert largest_shard(TINY, 3, (), "float32").heads.size == 2
    assert largest_shard(TINY, 2, (1, 3), "float32").index == 1


def test_a_tensor_group_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    calibration = calibrate(TINY, ONE._replace(tp=2, shares=(3, 1)), concurrent=2, say=said.append)
    assert said == ["measuring a rank of 2 in float32 on 1 thread of this machine, once"]
    assert (calibration.setting.tp, calibration.setting.shares) == (2, (3, 1))
    assert [one.ranks for one in calibration.together] == [2]
    assert calibration.forward_s(MicroBatch((Row(0, 0, 100, 1, True),)), 2, is_last=True) > 0


def test_what_is_known_is_not_measured_again(no_measuring: list[str]) -> None:
    first = calibrate(TINY, HALF)
    assert calibrate(TINY, HALF) == first
    assert calibrate(replace(TINY, name="the same sizes"), HALF) == first
    assert no_measuring == ["bfloat16"]
    calibrate(TINY, HALF, fresh=True)
    assert no_measuring == ["bfloat16", "bfloat16"]


@pytest.mark.parametrize(
    "other",
    [
        {"kernel": ONE},
        {"kernel": HALF._replace(threads=2)},
        {"kernel": HALF._replace(tp=2)},
        {"kernel": HALF._replace(tp=2, shares=(3, 1))},
        {"kernel": HALF._replace(tp=2, sequence=True)},
        {"concurrent": 2},
        {"rows": 8},
        {"spec": replace(TINY, hidden=128)},
    ],
)
def test_anything_that_matters_is_measured_anew(no_measuring: list[str], other: dict[str, object]) -> None:
    usual: dict[str, object] = {"spec": TINY, "kernel": HALF}
    calibrate(**usual)  # type: ignore[arg-type]
    calibrate(**usual | other)  # type: ignore[arg-type]
    assert len(no_measuring) == 2


def test_a_corrupt_file_is_measured_again(no_measuring: list[str]) -> None:
    path = calibration_path(calibrate(TINY, HALF).setting)
    path.write_text("{")
    assert calibrate(TINY, HALF) == read(path)
    assert no_measuring == ["bfloat16", "bfloat16"]


def test_a_measuring_process_that_dies_says_why() -> None:
    with pytest.raises(RunError, match="measuring this host failed: KeyError: 'float8'"):
        module._measure(TINY, replace(module._setting(TINY, ONE, 1, 1), dtype="float8"))


def test_local_costs_of_a_mixed_layout(no_measuring: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.prober.local.measure_shm_link", lambda *ways, beside, fresh: FREE)
    layout = Layout({"pp": 2}, (Stage((0, 2), (0,)), Stage((2, 4), (1,), "bfloat16", "bfloat16")))
    costs = local_costs(layout, TINY)
    assert sorted(no_measuring) == ["bfloat16", "float32"]
    assert {kernel.dtype for kernel in costs.calibrations} == {"float32", "bfloat16"}
    token = MicroBatch((Row(0, 0, 10, 1, True),))
    assert costs.compute_s(layout, 0, token) > 0


def test_local_costs_of_tensor_groups(no_measuring: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One calibration for both stages, beside four ranks; exchanges among two; hand-overs of two at a time."""
    asked = []

    def exchanges(*given: object, **more: object) -> ExchangeTimes:
        asked.append((given, more))
        return ExchangeTimes(*[Curve((1.0,), (7.0,))] * 3)

    def link(*given: object, **more: object) -> LinkCost:
        asked.append((given, more))
        return FREE

    monkeypatch.setattr("plait.prober.local.measure_shm_link", link)
    monkeypatch.setattr("plait.prober.local.measure_exchanges", exchanges)
    stages = (Stage((0, 2), (0, 1), threads=3), Stage((2, 4), (2, 3), threads=3))
    layout = Layout({"pp": 2, "tp": 2}, stages)
    costs = local_costs(layout, TINY)
    assert asked == [
        ((3, 2, "float32"), {"all_threads": 12, "fresh": False}),
        ((3, 2, "float32"), {"beside": 2, "fresh": False}),
    ]
    (calibration,) = costs.calibrations.values()
    assert (calibration.setting.tp, calibration.setting.together) == (2, 4)
    token = MicroBatch((Row(0, 0, 10, 1, True),))
    assert costs.exchange(layout, 0, token, Kind.FORWARD).seconds == 7.0 * (1 + 2 * 2)
    assert costs.compute_s(layout, 0, token) > 7.0 * 5


def test_a_stage_elsewhere_is_refused() -> None:
    layout = Layout({"pp": 2}, (Stage((0, 2), (0,)), Stage((2, 4), (1,), host="far")))
    with pytest.raises(PlanError, match=r"only the CPU of one host can be measured here, but the plan names \['far'\]"):
        local_costs(layout, TINY)


def test_what_was_measured_beside_other_work_is_not_trusted_for_long(
    no_measuring: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Others, "share", 0.5)
    monkeypatch.setattr(module.Others, "__exit__", lambda *_: None)
    taken = calibrate(TINY, HALF)
    assert taken.others == 0.5
    calibrate(TINY, HALF)
    assert len(no_measuring) == 1
    now_s = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now_s + TRUSTED_S + 1)
    calibrate(TINY, HALF)
    assert len(no_measuring) == 2


@pytest.mark.parametrize(
    ("times", "layer_s", "beside_s"),
    [
        ((0.0, 3.0, 36.0, 9.0), 1.0, 2.0),  # 3 pieces: 3 × 2 beside, 30 layers of 1
        ((0.0, 20.0, 36.0, 9.0), 0.3, 19.7),  # the first was held up: a layer takes no less than a quarter of 36 ÷ 30
    ],
)
def test_a_layer_takes_time_on_the_busiest_machine(times: tuple[float, ...], layer_s: float, beside_s: float) -> None:
    ten = SimpleNamespace(layers=10)
    timed = Bench._split(SimpleNamespace(_share=ten, _rest=[ten, ten]), Work(1, 1, 0), times)  # type: ignore[arg-type]
    assert timed.layer_s == pytest.approx(layer_s)
    assert timed.action_s == pytest.approx(beside_s)
