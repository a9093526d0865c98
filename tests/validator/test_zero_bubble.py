"""The zero-bubble paper's tables: computed bubbles are equal, measured speed and memory near, faults are named."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from plait.errors import SpecError
from plait.schedules.training import compute_order
from plait.validator.table import Record, Validation, read_records
from plait.validator.zero_bubble import (
    CALIBRATED_ON,
    EXACT,
    read_models,
    read_run,
    read_times,
    validate_bubbles,
    validate_measured,
)
from plait.validator.zero_bubble_memory import peak_gb


def table(name: str) -> list[Record]:
    return read_records(Path(str(files("plait.validator") / "tables" / f"{name}.csv")))


def bubbles() -> dict[str, Validation]:
    return {each.quantity: each for each in validate_bubbles("t", table("zero_bubble_tables5_8_bubble"))}


def measured() -> dict[str, Validation]:
    return {each.quantity: each for each in validate_measured("t", table("zero_bubble_table4_measured"))}


def test_the_36_bubbles_of_table_5_agree_to_4_decimals() -> None:
    rows = bubbles()["bubble of 1F1B, ZB-H1 and ZB-H2"].rows
    assert len(rows) == 36
    assert [round(row.predicted, 4) for row in rows] == [row.published for row in rows]


def test_interleaved_is_within_half_a_point() -> None:
    rows = bubbles()["bubble of 1F1B-I"].rows
    assert len(rows) == 12
    assert max(abs(row.predicted - row.published) for row in rows) < 0.005


def test_what_sets_interleaved_apart_is_hand_overs_that_theirs_leaves_out() -> None:
    """From the last position on to the first, and back, theirs waits only for the first of each p micro-batches."""
    models, times = read_models(), read_times()
    for record in table("zero_bubble_tables5_8_bubble"):
        if record["table"] == "table5" and record["schedule"] == "1F1B-I":
            run = read_run(record)
            own = times[run.model, run.positions, run.micro_batches]
            virtual = models[run.model].stage_layers(run.positions)
            cost_s = _theirs_s(run.positions, virtual, run.micro_batches, own)
            assert round(1 - run.micro_batches * own.busy_s / cost_s, 4) == float(record["bubble_rate"])


def _theirs_s(positions: int, virtual: int, micro_batches: int, times: tuple[float, float, float, float]) -> float:
    forward_s, input_s, weight_s, hand_over_s = times
    lanes = compute_order("interleaved", positions, virtual, micro_batches).actions()
    ends: dict[tuple[str, int, int], float] = {}
    at, free = [0] * positions, [0.0] * positions
    while any(at[q] < len(lane) for q, lane in enumerate(lanes)):
        for q, lane in enumerate(lanes):
            while at[q] < len(lane):
                kind, stage, micro_batch = lane[at[q]].kind.value, lane[at[q]].stage, lane[at[q]].micro_batch
                before = stage - 1 if kind == "F" else stage + 1
                if 0 <= before < positions * virtual:
                    if (kind, before, micro_batch) not in ends:
                        break
                    wraps = q == (0 if kind == "F" else positions - 1)
                    if not wraps or micro_batch % positions == 0:
                        free[q] = max(free[q], ends[kind, before, micro_batch] + hand_over_s)
                free[q] += (forward_s if kind == "F" else input_s + weight_s) / virtual
                ends[kind, stage, micro_batch] = free[q]
                at[q] += 1
    return max(free)


def test_zb_v_is_within_two_points_of_table_8() -> None:
    rows = bubbles()["bubble of ZB-V of table 8, with the times of table 9"].rows
    assert len(rows) == 3
    assert max(abs(row.predicted - row.published) for row in rows) < 0.02


def test_no_row_is_lost_in_silence() -> None:
    found = bubbles().values()
    assert sum(len(each.rows) for each in found) == 63
    assert all("54 rows of the table are left out" in each.note for each in found)


def test_samples_a_second() -> None:
    """Perfect times are 4 to 17 % too fast, as the tables' README says; the residue is fitted on one row a schedule."""
    perfect, whole = measured()["samples a second and GPU, perfect times"], measured()["samples a second and GPU"]
    assert all(-0.1 < row.error_pct < 17.5 for row in perfect.rows)
    assert [row.name for row in whole.rows if row.calibrated] == [
        row.name for row in whole.rows if row.name.startswith(CALIBRATED_ON[0]) and f" {CALIBRATED_ON[1]} " in row.name
    ]
    assert len(whole.judged) == 44
    assert whole.mean_abs_error_pct < 1.5
    assert whole.worst_pct < 4


def test_peak_memory() -> None:
    found = measured()
    assert len(found["peak memory of 1F1B"].rows) == 12
    for schedule in ("1F1B", "1F1B-I", "ZB-1p", "ZB-2p"):
        assert found[f"peak memory of {schedule}"].worst_pct < 8


def test_peak_memory_by_hand() -> None:
    """1.5B, stage 1 of 8: 3 layers, 7 micro-batches of 6 × 1,024 tokens, 34 s b h + 5 b s² a; 16 bytes a weight."""
    kept = 34 * 1024 * 6 * 2304 + 5 * 6 * 1024**2 * 24
    weights = 12 * 2304**2 + 13 * 2304
    assert peak_gb(read_models()["1.5B"], 8, 24, "1f1b") == pytest.approx((7 * 3 * kept + 16 * 3 * weights) / 1e9)


def test_the_other_reading_of_gb_is_worse_and_said() -> None:
    models = read_models()
    published = {"1.5B": 30, "6.2B": 39, "14.6B": 32, "28.3B": 43}
    positions = {"1.5B": 8, "6.2B": 8, "14.6B": 16, "28.3B": 32}
    errors = [
        peak_gb(models[name], positions[name], 4 * positions[name], "1f1b", "mixed-float32-gradients", 2**30) / gb - 1
        for name, gb in published.items()
    ]
    assert min(errors) == pytest.approx(-0.087, abs=5e-4)


def test_a_wrong_schedule_is_noticed() -> None:
    """The comparison can fail: rows under another schedule's name are points apart."""
    records = [dict(record) for record in table("zero_bubble_tables5_8_bubble") if record["schedule"] in EXACT]
    for record in records:
        record["schedule"] = {"1F1B": "ZB-H1", "ZB-H1": "ZB-H2", "ZB-H2": "1F1B"}[record["schedule"]]
    assert min(abs(row.predicted - row.published) for row in validate_bubbles("t", records)[0].rows) > 0.005


def test_what_cannot_be_compared() -> None:
    record = dict(table("zero_bubble_tables5_8_bubble")[0])
    with pytest.raises(SpecError) as error:
        validate_bubbles("t", [record | {"schedule": "2F2B"}])
    assert str(error.value) == (
        "the row table table5, model 1.5B, pp 8, num_microbatches 24: unknown schedule '2F2B': "
        "known: 1F1B, 1F1B-I, ZB-1p, ZB-2p, ZB-H1, ZB-H2, ZB-V"
    )
    with pytest.raises(SpecError) as error:
        validate_bubbles("t", [record | {"model": "7B"}])
    assert str(error.value) == "table t: no row is of a schedule and a run whose times, on A100, table 9 has"
    row = dict(table("zero_bubble_table4_measured")[0]) | {"num_microbatches": "25"}
    (memory,) = validate_measured("t", [row])
    assert memory.note == (
        "taken as zb-h2; samples a second are not compared: table 9 has no times for these runs on this device"
    )
