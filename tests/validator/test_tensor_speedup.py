"""Tensor speed-ups: the solved machine is one that can be, gives its four rows back, and is judged on the others."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from plait.costs.work import model_flops, model_parameters
from plait.errors import SpecError
from plait.validator import tensor_scaling, tensor_speedup
from plait.validator.table import Record, Validation, read_records
from plait.validator.tensor_speedup import calibrated_runs, counted, small, solved_machine

TABLES = Path(str(files("plait.validator") / "tables"))


def published(name: str) -> list[Record]:
    return read_records(TABLES / f"{name}.csv")


def by_quantity() -> dict[str, Validation]:
    found = tensor_speedup.validate("megatron2019_tables7_8", published("megatron2019_tables7_8"))
    return {one.quantity: one for one in found}


def test_the_machine_is_one_that_can_be() -> None:
    """A V100 has 125 TFLOP/s, 900 GB/s, and 300 GB/s of NVLink both ways; the step's rest is part of a second."""
    flops, memory, bus, step = solved_machine().costs
    assert 0.3 < 1 / flops / 125e12 < 0.9
    assert 0.3 < 1 / memory / 900e9 < 1.0
    assert 0.2 < 1 / bus / 150e9 < 1.0
    assert 0 < step < 0.2 * small(1, 1.0).step_s


def test_the_calibrated_rows_come_back() -> None:
    machine = solved_machine()
    for run in calibrated_runs():
        assert machine.step_s(counted(run)) == pytest.approx(run.step_s)


def test_speed_up_over_a_tensor_group() -> None:
    """Table 8: within 10 % on the two rows that nothing was fitted on."""
    rows = by_quantity()["speed-up of 1.2B over tp"]
    assert [row.name for row in rows.judged] == ["tp 4", "tp 8"]
    assert rows.worst_pct < 10
    assert rows.mean_abs_error_pct < 6


def test_scaling_by_heads() -> None:
    rows = by_quantity()["scaling of 8.3B on 8 GPUs by heads"]
    assert [row.name for row in rows.judged] == ["24 heads"]
    assert rows.worst_pct < 3


def test_weak_scaling() -> None:
    """Figure 5: neither judged row is in the table that the machine was solved from."""
    (rows,) = tensor_scaling.validate("megatron2019_weak_scaling", published("megatron2019_weak_scaling"))
    assert [row.name for row in rows.judged] == ["2.5B on 2", "4.2B on 4"]
    assert all(row.note for row in rows.judged)
    assert rows.worst_pct < 10


def test_a_wrong_figure_is_seen() -> None:
    records = published("megatron2019_tables7_8")
    for record in records:
        if record["value"] == "8":
            record["result"] = "5.96"
    (rows,) = (one for one in tensor_speedup.validate("made", records) if one.quantity == "speed-up of 1.2B over tp")
    assert rows.worst_pct > 40


def test_the_models_are_those_published() -> None:
    """Figure 5's table: 1.2, 2.5, 4.2 and 8.3 billion parameters; table 8's step has 8 × 1024 tokens."""
    for record in published("megatron2019_weak_scaling"):
        spec = tensor_speedup.megatron_spec(*(int(record[key]) for key in ("hidden", "heads", "layers")))
        assert model_parameters(spec).total / 1e9 == pytest.approx(float(record["params_B"]), abs=0.06)
    spec = tensor_speedup.megatron_spec(1536, 16, 40)
    assert small(2, 1.6).step_s == pytest.approx(model_flops(spec, 8, 1024, "full") / 39e12 / 1.6)


def test_another_table_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        tensor_speedup.validate("made", [{"variable": "gpus(dp)", "value": "2", "result": "1.9"}])
    assert (
        str(caught.value)
        == "the row variable gpus(dp), value 2, result 1.9: unknown variable 'gpus(dp)': did you mean 'gpus(tp)'?"
    )


def test_columns_are_those_of_the_tables() -> None:
    assert set(published("megatron2019_tables7_8")[0]) >= tensor_speedup.COLUMNS
    assert set(published("megatron2019_weak_scaling")[0]) >= tensor_scaling.COLUMNS
