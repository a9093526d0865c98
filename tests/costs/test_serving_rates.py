"""What devices reach while they generate, with a profile, with a name never heard of, and without."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from plait.costs.operations import Operation
from plait.costs.profiles import PLAIN, profile_named
from plait.costs.serving import ServingModel
from plait.costs.serving_rates import note_of, profiles_of, rates_of, speed
from plait.costs.tensor_group import Wires
from plait.spec.cluster import Beside, BesideSpread, Cluster, Device, Host, Network, Wire
from plait.spec.model import ModelSpec, Rope
from plait.validator.distributed_llama import SPEED, profiles, read_row
from plait.validator.table import read_records
from plait.validator.validate import table_paths

BARE = Device("bare", "h", 1, {"bfloat16": 1e14}, 1e12)
READ = Operation("read", "memory", 0, 0, 0, 1, 0.0, 1e9, 0.0)
PRODUCT = Operation("product", "matmul", 1, 8192, 8192, 1, 2.0 * 8192 * 8192, 2.0 * 8192 * 8192, 0.0)
UNKNOWN = "what operations take beside FLOP and bytes was not measured and counts as 0 (plait probe does)"
SPEC = ModelSpec("m", "llama", 8, 4096, 32, 8, 128, 14336, 128256, 8192, 1e-5, Rope(5e5, 128), (None,) * 8)


def seconds(device: Device, *operations: Operation) -> float:
    return rates_of([device], "bfloat16", profiles_of([device]))[device.name].seconds(operations)


def test_figures_as_they_are() -> None:
    assert seconds(BARE, READ) == pytest.approx(1e-3)
    assert seconds(BARE, PRODUCT._replace(flops=1e12)) == pytest.approx(1e-2)


def test_a_name_never_heard_of_gets_the_plain_shares() -> None:
    plain, unknown = profile_named(PLAIN), replace(BARE, profile="never-heard-of")
    assert seconds(unknown, READ) == pytest.approx(1e-3 / plain.memory_share)
    assert seconds(unknown, PRODUCT._replace(flops=1e12)) == pytest.approx(1e-2 / plain.matrix_share)


def test_the_plain_profile_is_its_shares_alone() -> None:
    """Its tiles are of large GPUs: on a CPU one row would be computed 16 times."""
    plain, named = profile_named(PLAIN), replace(BARE, profile=PLAIN)
    assert seconds(named, READ) == pytest.approx(1e-3 / plain.memory_share)
    assert seconds(named, *[READ._replace(moved_bytes=1.0)] * 100) < plain.launch_s
    assert note_of([named]) == ("not calibrated for generation: 65% of FLOP/s and 85% of memory bandwidth assumed")


def test_a_profile_adds_what_starting_takes() -> None:
    profile = profile_named("a100")
    known = replace(BARE, profile="a100")
    expected = 1e-3 / profile.memory_share + profile.operation_s
    assert seconds(known, READ) == pytest.approx(expected, rel=1e-3)
    assert seconds(known, *[READ._replace(moved_bytes=1.0)] * 100) >= 100 * profile.launch_s


def test_a_row_is_not_computed_as_a_whole_tile() -> None:
    """134 MB of weights for one row: bound by their bytes, as decoding is, not by 256 rows of products."""
    profile = profile_named("a100")
    expected = 2 * 8192 * 8192 / (1e12 * profile.memory_share) + profile.operation_s
    assert seconds(replace(BARE, profile="a100"), PRODUCT) == pytest.approx(expected, rel=1e-3)


def test_dtypes_that_a_device_does_not_name() -> None:
    device = replace(BARE, flops={"float16": 3.0, "float32": 1.0})
    assert speed(device, "bfloat16") == 3.0
    assert speed(device, "float32") == 1.0
    assert speed(replace(device, flops={"float32": 1.0, "int8": 5.0}), "bfloat16") == 1.0


def test_links_get_the_share_of_the_senders_profile() -> None:
    profile = profile_named("a100")
    devices = tuple(replace(BARE, name=f"d{i}", host=f"h{i // 2}", profile="a100") for i in range(3))
    network = Network(Wire(1e-6, 3e11), Wire(1e-5, 2.5e10))
    cluster = Cluster((Host("h0"), Host("h1")), devices, network=network)
    wires = Wires(cluster, profiles_of(devices))
    assert wires.link("d0", "d1").bandwidth == pytest.approx(3e11 * profile.within_share)
    assert wires.link("d0", "d2").bandwidth == pytest.approx(2.5e10 * profile.between_share)
    start_s = wires.all_reduce(("d0", "d1"), 0.0).seconds
    assert start_s == pytest.approx(profile.exchange_s + 1e-6)
    assert Wires(cluster).all_reduce(("d0", "d1"), 0.0).seconds == pytest.approx(1e-6)


def test_devices_that_are_alike_are_computed_once() -> None:
    devices = [replace(BARE, name=f"d{i}", profile="a100") for i in range(4)] + [replace(BARE, memory_bandwidth=inf)]
    assert len(set(map(id, rates_of(devices, "bfloat16", profiles_of(devices)).values()))) == 2


def test_notes() -> None:
    assert note_of([BARE]) == "not calibrated for generation: the devices' figures as they are"
    assert note_of([replace(BARE, profile="never-heard-of")]) == (
        "not calibrated for generation: no profile 'never-heard-of', 65% of FLOP/s and 85% of memory bandwidth assumed"
    )
    trained = note_of([BARE, replace(BARE, profile="a100")])
    assert trained == (
        "not calibrated for generation: the devices' figures as they are; profile 'a100', fitted on training "
        f"({profile_named('a100').calibrated_on})"
    )
    measured = replace(BARE, profile="measured", spread={"float32": 0.02, "memory_bandwidth": 0.3})
    assert note_of([measured]) == (
        "not calibrated for generation: the devices' figures as they were measured, ± 30% or less; " + UNKNOWN
    )
    assert note_of([replace(measured, spread={})]) == (
        "not calibrated for generation: the devices' figures as they were measured; " + UNKNOWN
    )
    known = replace(measured, beside={"float32": Beside(2e-5, spread=BesideSpread(operation=0.4))})
    assert note_of([known]) == (
        "not calibrated for generation: the devices' figures as they were measured, ± 40% or less"
    )
    pi = replace(BARE, profile="raspberry-pi-5")
    words = (
        "calibrated in part: profile 'raspberry-pi-5', its memory's bandwidth fitted on distributed-llama's pull "
        "request 64, Llama 3 8B on 2 and 4 machines"
    )
    assert note_of([pi, pi]) == words
    assert ServingModel(SPEC, Cluster((Host("h"),), (pi,))).note == words


def test_the_raspberry_pi_is_what_the_validator_fits() -> None:
    (path,) = [path for path in table_paths() if path.stem == SPEED]
    rows = [read_row(record) for record in read_records(path)]
    reached = profiles(rows)["PR64"].bandwidth
    assert profile_named("raspberry-pi-5").memory_share * 17.07e9 == pytest.approx(reached, rel=0.001)
