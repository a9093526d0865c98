import pytest

from plait.reports.figures import report_json
from plait.timeline.record import RunRecord


def test_the_figures_have_the_keys_that_plait_uses_everywhere(record):
    found = report_json(record)
    assert found["measured"] == {
        "ttft_s": pytest.approx((0.0025 + 0.004) / 2),
        "tokens_per_s": pytest.approx(8 / 0.013),
        "prefill_tokens_per_s": pytest.approx(128 / 0.004),
        "decode_tokens_per_s": pytest.approx(6 / 0.009),
        "time_per_token_s": pytest.approx(0.003),
        "compute_s": pytest.approx(0.020),
        "transfer_s": 0.0,
        "wait_s": pytest.approx(0.006),
        "bubble": pytest.approx(6 / 26),
        "comm_bytes": 8256,
        "makespan_s": pytest.approx(0.013),
        "stages": [
            {
                "stage": 0,
                "ranks": [0],
                "layers": [0, 15],
                "dtype": "float32",
                "weights": "float32",
                "weight_bytes": 269 * 2**20,
                "peak_bytes": 488 * 2**20,
                "compute_s": pytest.approx(0.008),
                "transfer_s": 0.0,
                "wait_s": pytest.approx(0.005),
                "bubble": pytest.approx(5 / 13),
                "exchange_s": 0.0,
                "comm_bytes": 8192,
            },
            {
                "stage": 1,
                "ranks": [1],
                "layers": [15, 30],
                "dtype": "float32",
                "weights": "",
                "weight_bytes": None,
                "peak_bytes": None,
                "compute_s": pytest.approx(0.012),
                "transfer_s": 0.0,
                "wait_s": pytest.approx(0.001),
                "bubble": pytest.approx(1 / 13),
                "exchange_s": 0.0,
                "comm_bytes": 64,
            },
        ],
    }
    assert found["model"] == {"name": "tiny", "layers": 30}
    assert [stage["layers"] for stage in found["stages"]] == [[0, 15], [15, 30]]


def test_off_is_predicted_over_measured(record):
    off = report_json(record)["off"]
    assert off["makespan_s"] == pytest.approx(9 / 13 - 1)
    assert off["tokens_per_s"] == pytest.approx(13 / 9 - 1)
    assert off["bubble"] == pytest.approx(1 / 9 - 6 / 26)
    assert (off["only_predicted"], off["only_measured"]) == (0, 0)


def test_what_is_absent_is_none():
    found = report_json(RunRecord("", ()))
    assert found == {
        "model": {},
        "task": "generate",
        "stages": [],
        "predicted": None,
        "measured": None,
        "off": None,
    }


def test_what_only_the_run_knew_is_kept_and_what_the_spans_show_wins(record):
    known = {"measured": {"mfu": 0.4, "bubble": 0.9}}
    found = report_json(RunRecord("", record.stages, rounds=record.rounds, measured=record.measured, result=known))
    assert found["measured"]["mfu"] == 0.4
    assert found["measured"]["bubble"] == pytest.approx(6 / 26)


def test_without_the_rounds_there_are_no_tokens_to_count(record):
    found = report_json(RunRecord("", record.stages, measured=record.measured))
    speeds = ("tokens_per_s", "ttft_s", "prefill_tokens_per_s", "decode_tokens_per_s", "time_per_token_s")
    assert [found["measured"][key] for key in speeds] == [None] * 5
    assert found["measured"]["compute_s"] == pytest.approx(0.020)


def test_tokens_that_a_request_did_not_keep_do_not_count(record):
    kept = {"requests": [{"tokens": [1, 2, 3, 4]}, {"tokens": [1]}]}
    found = report_json(RunRecord("", record.stages, rounds=record.rounds, measured=record.measured, result=kept))
    assert found["measured"]["tokens_per_s"] == pytest.approx(5 / 0.013)
