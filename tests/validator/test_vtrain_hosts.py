"""vTrain's runs over many hosts: predicted by the profile of its single host, with nothing fitted on them."""

from importlib.resources import files

from plait.validator.table import read_records
from plait.validator.vtrain import validate

_TABLE = files("plait.validator") / "tables" / "vtrain_ground_truth_multi.csv"


def test_no_row_is_calibrated_and_the_mean_is_below_the_tables_own_simulator() -> None:
    (found,) = validate("vtrain_ground_truth_multi", read_records(_TABLE))
    assert len(found.rows) == len(found.judged) == 109
    assert not any(row.calibrated for row in found.rows)
    assert found.mean_abs_error_pct < 14.73  # vTrain's own claim for this set
    assert found.regret_pct is not None
    assert found.regret_pct < 4


def test_every_row_says_that_it_extrapolates() -> None:
    (found,) = validate("vtrain_ground_truth_multi", read_records(_TABLE))
    assert all("not calibrated" in row.note for row in found.rows)
