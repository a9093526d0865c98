"""Worked numbers against values known beforehand: by hand, from papers, and from the planner's own answer."""

from __future__ import annotations

from .tools import tool

worked = tool("worked")


def test_a_bubble_of_four_stages() -> None:
    text = worked.pipeline()
    assert "(4 − 1) ÷ (8 + 4 − 1) = 3 ÷ 11 = 27.3 %" in text
    assert "| `1f1b` | 42.9 % | 27.3 % | 15.8 % | 4 |" in text
    assert "| `zb-h1` | 20.0 % | 11.1 % | 5.9 % | 4 |" in text  # 3 ÷ (3 m + 3)
    assert "below 5 % it takes 58" in text  # 3 ÷ 61 = 4.92 %, 3 ÷ 60 is 5 %


def test_a_hop_of_a_70b_model() -> None:
    text = worked.layer_wise()
    assert "39.7 ÷ 1,008 = 39.4 ms" in text  # 70.55e9 parameters at 4.5 bits; the data sheet of an RTX 4090
    assert "8,192 values × 2 bytes = 16,384 bytes, 100 µs + 16,384 ÷ 125 MB/s = 231 µs" in text


def test_sums_of_a_70b_model() -> None:
    assert "2 × 80 layers = 160" in worked.tensor_parallel()


def test_weights_of_the_demo_model() -> None:
    # 134,515,008 parameters: the model card of SmolLM2-135M
    assert "538 MB" in worked.many_users()
    assert "| 8 | 100 % | 538 MB |" in worked.many_users()


def test_tokens_that_hide_gradients() -> None:
    # 8 · ½ · 0.5e12 ÷ (6 · 125e6) = 2,667
    assert "| two desktops, 1 Gb/s | 0.5 | 0.125 | 2,667 |" in worked.data_parallel()


def test_experts_of_a_token() -> None:
    # 8 experts · 4,096 · 2 bytes · 7 ÷ 8
    assert "= 57,344 bytes out" in worked.expert_parallel()


def test_the_quiz_has_both_ways_and_the_one_that_cannot_be() -> None:
    text = worked.quiz()
    assert "cannot be: not enough memory" in text
    assert text.index("(pipeline)") < text.index("(tensor)")  # sorted by time: stages win over 1 Gb/s


def test_the_braid_lays_most_bytes_on_the_fastest_wire() -> None:
    rows = [line for line in worked.braid().splitlines() if line.startswith("| `")]
    sent = {row.split("`")[1]: float(row.split("|")[2].replace(",", "").split()[0]) for row in rows}
    assert sent["tp"] > sent["dp"] > sent["pp"]
