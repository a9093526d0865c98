"""A training step's picture: passes and micro-batches can be told apart without colours, virtual stages share a row."""

from __future__ import annotations

from plait.plans.notation import parse_action
from plait.reports.marks import ASCII
from plait.reports.picture import picture
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

# 1F1B over 2 stages, 4 micro-batches, a forward 1 unit, a backward 2 (PipeDream-flush, Narayanan et al. 2021, figure 4)
FIRST = "0F0 0F1 - 0B0 0B0 0F2 0B1 0B1 0F3 0B2 0B2 - 0B3 0B3 0O0"
SECOND = "- 1F0 1B0 1B0 1F1 1B1 1B1 1F2 1B2 1B2 1F3 1B3 1B3 1O0 -"


def timeline(rows: list[str]) -> Timeline:
    """A character of the rows is 1 ms; an action that stands twice takes 2."""
    spans: list[Span] = []
    for rank, row in enumerate(rows):
        for start, word in enumerate(row.split()):
            if word == "-":
                continue
            action = parse_action(word)
            if spans and spans[-1].action == action and spans[-1].rank == rank:
                spans[-1] = spans[-1]._replace(end_s=(start + 1) * 1e-3)
            else:
                spans.append(Span(0, action, rank, start * 1e-3, (start + 1) * 1e-3))
    return Timeline("predicted", tuple(spans))


def rows(drawn: str, name: str) -> list[str]:
    return [line.rsplit("  ", 1)[0].removeprefix(name) for line in drawn.splitlines() if line.startswith(name)]


def test_a_one_f_one_b_step_reads_as_in_the_paper() -> None:
    drawn = picture(timeline([FIRST, SECOND]), None, 18 + 15 * 4 + 6, glyphs=ASCII).plain
    (first,), (second,) = rows(drawn, "stage 0 predicted "), rows(drawn, "stage 1 predicted ")
    assert first.rstrip()[::4] == "01 aa2bb3cc dd#"
    assert second.rstrip()[::4] == " 0aa1bb2cc3dd#"
    assert " ".join(drawn.split("\n\n")[-1].split()) == (
        "0 to 3 forward: micro-batches 0 to 3 a to d backward: micro-batches 0 to 3 # optimizer (blank) nothing to do"
    )


def test_halves_of_a_backward_are_told_apart() -> None:
    drawn = picture(timeline(["0F0 0F11 0I0 0W0 0I11 0W11 0O0"]), None, 18 + 7 * 4 + 6, glyphs=ASCII).plain
    (row,) = rows(drawn, "stage 0 predicted ")
    assert row[::4].rstrip() == "01aAbB#"
    assert "A to J backward of weights: micro-batches 0 to 9, and on" in drawn


def test_reductions_the_norm_and_who_waits_for_whom() -> None:
    """Stage 0 reduces (G), sums the tied embedding (T) and comes to the norm; stage 2 has waited in its T and N."""
    first = "0F0 0B0 0B0 0G0 0G0 0T0 0N0 0O0"
    second = "- 2F0 2B0 - - - - 2O0"
    drawn = timeline([first, second])
    tied = Span(0, parse_action("2T0"), 1, 3e-3, 6e-3, 64, (Part("wait", 3e-3, 5e-3), Part("transfer", 5e-3, 6e-3)))
    norm = Span(
        0,
        parse_action("2N0"),
        1,
        6e-3,
        7e-3,
        8,
        (Part("wait", 6e-3, 6.25e-3), Part("compute", 6.25e-3, 6.75e-3), Part("transfer", 6.75e-3, 7e-3)),
    )
    drawn = Timeline("predicted", (*drawn.spans, tied, norm))
    shown = picture(drawn, None, 18 + 8 * 4 + 6, glyphs=ASCII)
    (top,), (below,) = rows(shown.plain, "stage 0 predicted "), rows(shown.plain, "stage 2 predicted ")
    assert top == "0000aaaaaaaa============%%%%####"
    assert below == "    0000aaaa........====.%%x####"
    assert "% norm of the mesh" in shown.plain
    assert "= transfer or reduction" in " ".join(shown.plain.split())
    assert ". waits for others" in " ".join(shown.plain.split())
    styles = {shown.plain[span.start : span.end]: str(span.style) for span in shown.spans}
    assert styles["%%%%"] == "red"
    assert styles["####"] == "magenta"


def test_virtual_stages_share_their_ranks_row() -> None:
    drawn = picture(timeline(["0F0 2F0 2B0 0B0", "- 1F0 3F0 3B0 1B0"]), None, 22 + 5 * 4 + 6, glyphs=ASCII).plain
    assert rows(drawn, "stages 0, 2 predicted ")[0][::4].strip() == "00aa"
    assert rows(drawn, "stages 1, 3 predicted ")[0][::4].strip() == "00aa"


def test_generation_looks_as_before() -> None:
    drawn = picture(timeline(["0F0 0F1", "- 1F0 1F1"]), None, 18 + 4 * 8 + 6).plain
    assert "█ compute micro-batch 0   ▒ compute micro-batch 1" in drawn
