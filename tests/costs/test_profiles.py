"""Profiles: the formula of a product, figures with sources, notes, and files that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from plait.costs.operations import Operation
from plait.costs.profiles import (
    DeviceRates,
    Profile,
    beside_of,
    profile_for,
    profile_named,
    profile_names,
    rates,
    read_profile,
)
from plait.errors import SpecError
from plait.spec.cluster import Beside, Device

PLAIN = profile_named("plain")
A100 = Device("a", "h", 80 * 2**30, {"float16": 312e12, "float32": 19.5e12}, 2039e9, profile="a100")


def product(rows: float, columns: float, inner: float, times: float = 1) -> Operation:
    moved = times * 2 * (rows * columns + columns * inner + rows * inner)
    return Operation(
        "m", "matmul", rows, columns, inner, times, 2 * times * rows * columns * inner, moved, moved, weights=True
    )


def exact(**figures: object) -> DeviceRates:
    """A device of 1 TFLOP/s with ten units of 100 × 10 tiles, memory that is never in the way, nothing beside."""
    plain = {"tile_rows": 100.0, "tile_columns": 10.0, "units": 10.0, "started": 0.5, "inner_half": 50.0}
    whole = {"matrix_share": 0.5, "memory_share": 1.0, "operation_s": 0.0}
    return DeviceRates(PLAIN.changed(**plain | whole | figures), 1e12, 1e15)


def test_a_product_is_waves_of_tiles() -> None:
    """200 × 100 is 2 × 10 tiles, 2 waves on ten units and half a one; inner 150 + 50, half of a unit's 0.1 TFLOP/s."""
    waves, tile_s = 2 + 0.5, 2 * 100 * 10 * (150 + 50) / (0.5 * 1e12 / 10)
    assert exact().operation_s(product(200, 100, 150), fused=True) == pytest.approx(waves * tile_s)


def test_a_row_takes_a_tile() -> None:
    assert exact().operation_s(product(1, 10, 100), fused=True) == exact().operation_s(
        product(100, 10, 100), fused=True
    )


def test_several_products_share_their_last_wave() -> None:
    one, ten = (exact().operation_s(product(100, 10, 150, times), fused=True) for times in (1, 10))
    assert ten / one == pytest.approx((1 + 0.5) / (0.1 + 0.5))


@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 7))
def test_large_products_reach_more_of_the_device_and_never_more_than_the_share(a: int, b: int, c: int) -> None:
    """Doubling a dimension of a product that fills its tiles never lowers FLOP/s; the share 0.5 is the limit."""
    operation = product(100 * 2**a, 10 * 2**b, 16 * 2**c)

    def reached(one: Operation) -> float:
        return one.flops / exact().operation_s(one, fused=True) / 1e12

    here = reached(operation)
    assert 0 < here < 0.5
    for larger in (
        product(operation.rows * 2, operation.columns, operation.inner),
        product(operation.rows, operation.columns * 2, operation.inner),
        product(operation.rows, operation.columns, operation.inner * 2),
    ):
        assert reached(larger) >= here * (1 - 1e-12)


def test_bytes_decide_where_memory_is_slow() -> None:
    slow = DeviceRates(exact().profile, 1e12, 1e9)
    operation = product(200, 100, 150)
    assert slow.operation_s(operation, fused=True) == pytest.approx(operation.moved_bytes / 1e9)


def test_attention_that_stores_scores_pays_for_flops_and_bytes() -> None:
    operation = Operation("a", "attention", 10, 10, 10, 1, 1e9, 2e9, 4e9)
    rate = exact(attention_share=0.1, fused_attention_share=0.5, memory_share=0.5)
    assert rate.operation_s(operation, fused=False) == pytest.approx(1e9 / 1e11 + 2e9 / 5e14)
    assert rate.operation_s(operation, fused=True) == pytest.approx(1e9 / 5e11)


def test_what_operations_take_beside() -> None:
    """1 TFLOP/s, 1 GB/s: 5 µs an operation, 2 reads of the weights before the FLOP of many rows, norms at 0.1 GB/s."""
    beside = Beside(5e-6, 2.0, 1e8)
    without = DeviceRates(profile_named("measured"), 1e12, 1e9)
    known = DeviceRates(without.profile, 1e12, 1e9, beside)

    def added(one: Operation) -> float:
        return known.operation_s(one, fused=True) - without.operation_s(one, fused=True)

    norm, attention = (
        Operation("n", "memory", 0, 0, 0, 1, 0.0, 1e6, 0.0),
        product(64, 64, 64)._replace(kind="attention"),
    )
    assert added(norm) == pytest.approx(5e-6 + 1e6 * (1e-8 - 1e-9))
    assert added(attention) == pytest.approx(5e-6)
    assert added(product(1, 4096, 4096)) == pytest.approx(5e-6)  # read once, as ever
    assert added(product(32, 4096, 4096)) == pytest.approx(5e-6)  # of several users: weights are laid out for that
    many = product(10**5, 4096, 4096)  # bound by its FLOP
    values = 10**5 * (4096 + 4096)
    weights_s = many.moved_bytes / 1e9 * 4096**2 / (4096**2 + values)
    assert added(many) == pytest.approx(5e-6 + 2 * weights_s)


def test_beside_is_of_the_dtype_or_of_the_other_one_of_16_bits() -> None:
    one = Beside(1e-5)
    device = Device("d", "h", 1, {"bfloat16": 1.0}, 1.0, beside={"bfloat16": one})
    assert beside_of(device, "bfloat16") == beside_of(device, "float16") == one
    assert beside_of(device, "float32") == Beside()
    assert rates(device, PLAIN, "float16").beside == one
    assert profile_for(device).name == "measured"  # nobody else says what operations take beside


def test_the_longer_of_device_and_host() -> None:
    rate = exact(sharpness=2.0)
    assert rate.longer_s(3.0, 4.0) == pytest.approx(5.0)
    assert rate.longer_s(3.0, 0.0) == 3.0
    assert exact(sharpness=50.0).longer_s(3.0, 4.0) == pytest.approx(4.0, rel=1e-6)


@pytest.mark.parametrize("name", profile_names())
def test_every_figure_has_a_source(name: str) -> None:
    profile = profile_named(name)
    words = {"name", "calibrated_on", "error_pct", "hidden_range", "devices_range", "sources", "parted"}
    without = [field for field in Profile.__slots__ if field not in words and not profile.sources.get(field)]
    assert without == []


def test_a_device_never_heard_of_gets_the_plain_profile() -> None:
    device = Device("x", "h", 2**30, {"float32": 1e12}, 1e11, profile="quantum-9000")
    assert profile_for(device).name == "plain"
    assert profile_for(A100).name == "a100"
    assert profile_for(device).note(1, 1) == "not calibrated: profile 'plain' was never compared with a measured run"


def test_the_note_says_the_error_or_what_is_outside() -> None:
    profile = PLAIN.changed(
        name="p", error_pct=2.04, calibrated_on="rows", hidden_range=(100, 200), devices_range=(1, 8)
    )
    assert profile.note(150, 8) == "± 2.0 % (mean absolute error of profile 'p' on rows it was not fitted on)"
    assert profile.note(250, 16, ["experts"]) == (
        "not calibrated here: profile 'p' extrapolates (hidden 250 is outside 100 to 200, "
        "devices 16 is outside 1 to 8, experts: never compared)"
    )


def test_half_precisions_stand_for_each_other() -> None:
    assert rates(A100, PLAIN, "bfloat16").flops == 312e12
    with pytest.raises(SpecError) as caught:
        rates(A100, PLAIN, "int8")
    assert str(caught.value) == "device 'a' has no FLOP/s for int8; known: float16, float32"


def test_no_such_profile() -> None:
    with pytest.raises(SpecError) as caught:
        profile_named("a10")
    assert str(caught.value) == "no profile 'a10'; did you mean 'a100'?"


def test_a_file_with_an_unknown_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps({"name": "mine", "launches_s": {"value": 1e-6, "source": "me"}}))
    with pytest.raises(SpecError) as caught:
        read_profile(path)
    assert str(caught.value) == f"profile {path}: unknown key 'launches_s': did you mean 'launch_s'?"


def test_a_file_that_lacks_figures(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    values = {
        name: getattr(PLAIN, name) for name in Profile.__slots__ if name not in ("sources", "error_pct", "residue")
    }
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    del values["units"], values["launch_s"]
    path.write_text(tomli_w.dumps(values | {"residue": {"value": {}, "source": "none"}}))
    with pytest.raises(SpecError) as caught:
        read_profile(path)
    assert str(caught.value) == f"profile {path}: missing launch_s, units"


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_share_that_cannot_be(value: float) -> None:
    with pytest.raises(SpecError) as caught:
        PLAIN.changed(memory_share=value)
    assert str(caught.value) == f"profile 'plain': memory_share is {value}, but must be above 0"
