"""The lab's many users: a wrong prediction is found, and the short form holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.lab.experiment import Outcome
from plait.lab.many_users import Found, Taken, judged, measure, read_bytes_per_s
from plait.lab.reading import even_layers, looked_up, read_weights
from plait.weights.model import model_spec

from .figures import broken, figures

WEIGHTS = 540_000_000


def taken(users: int, parts: int, round_s: float, *computed_s: float, predicted_s: float | None = None) -> Taken:
    predicted = figures(predicted_s or round_s, 0, *computed_s, users=users, forwards=parts)
    measured = figures(round_s, 0, *computed_s, users=users, forwards=parts)
    return Taken(predicted, measured, (parts * WEIGHTS / users, parts * WEIGHTS / users))


LAYER_WISE = {1: taken(1, 1, 0.040, 0.020, 0.020), 8: taken(8, 1, 0.080, 0.039, 0.039)}
PIPELINED = {1: taken(1, 1, 0.041, 0.020, 0.020), 8: taken(8, 2, 0.055, 0.050, 0.048)}
FOUND = Found(LAYER_WISE, PIPELINED, WEIGHTS, 14e9)


def test_what_is_as_predicted_holds_and_is_said() -> None:
    outcome = judged(FOUND, "full")

    assert outcome.holds
    assert outcome.sentence == (
        "One user leaves 50 % of two machines idle and gets 25.0 tokens/s; 8 users together get 100.0 layer-wise and "
        "145.5 pipelined, with 11 % idle. For a token 67.5 MB of weights are read layer-wise, and 135.0 MB pipelined, "
        "of 540.0 MB for one user alone; while it computes a machine reads 13.5 GB/s of them for one user and 11.0 "
        "GB/s for all, of 14.0 GB/s that its memory gives."
    )
    assert outcome.table.rows[-1] == (
        "8",
        "pipelined",
        *["145.5 tokens/s"] * 2,
        "11 %",
        "11 %",
        "135.0 MB",
        "11.0 GB/s",
    )


def test_without_the_memory_s_bandwidth_it_is_not_spoken_of() -> None:
    assert judged(replace(FOUND, memory_bytes_per_s=None), "full").sentence.endswith("of 540.0 MB for one user alone.")


def test_a_machine_reads_all_its_weights_in_what_it_computes() -> None:
    assert read_bytes_per_s(LAYER_WISE[1]) == pytest.approx(WEIGHTS / 0.040)
    assert read_bytes_per_s(PIPELINED[8]) == pytest.approx(2 * WEIGHTS / 0.098)


def test_a_forward_reads_every_tensor_but_the_rows_that_it_looks_up() -> None:
    spec = model_spec("demo")

    assert looked_up(spec) == 49_152 * 576 * 4
    assert read_weights(spec) == 134_515_008 * 4  # the published number of parameters; the head is the embedding
    assert read_weights(replace(spec, tied=False)) == 134_515_008 * 4  # the head is a tensor of its own


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        (
            {8: PIPELINED[8]._replace(read_bytes=(2 * WEIGHTS / 8, WEIGHTS / 8))},
            ["weights read a token, 8 users pipelined"],
        ),
        (
            {8: PIPELINED[8]._replace(predicted=figures(0.055, 0, 0.040, 0.035, users=8))},
            ["idle share, 8 users pipelined"],
        ),
        (
            {8: taken(8, 2, 0.055, 0.050, 0.048, predicted_s=0.100)},
            ["idle share, 8 users pipelined", "8 users pipelined"],
        ),
    ],
    ids=["one forward less", "another idle share", "no gain"],
)
def test_a_wrong_prediction_is_found(wrong: dict[int, Taken], fails: list[str]) -> None:
    assert broken(judged(replace(FOUND, pipelined=PIPELINED | wrong), "full")) == fails


def test_stages_read_as_much_of_the_weights() -> None:
    """The demo's head is as large as eight of its 30 layers."""
    assert even_layers(model_spec("demo"), 2) == (19, 11)
    assert even_layers(model_spec("demo"), 1) == (30,)


def run(size: str = "short") -> Outcome:
    said: list[str] = []
    outcome = measure(size, said.append)  # type: ignore[arg-type]
    users = "1, 2, 4, 8" if size == "full" else "1, 2, 4"
    assert f"{users} users, layer-wise and pipelined" in said
    return outcome


def test_the_short_form_holds() -> None:
    outcome = run()

    assert broken(outcome) == []
    assert len(outcome.checks) == 3 * 2 * 3
