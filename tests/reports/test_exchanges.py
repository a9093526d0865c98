"""Exchanges inside a stage: drawn, counted and told apart from messages between stages."""

from plait.plans.notation import parse_action
from plait.reports.cells import exchanged_s, paint, segments
from plait.reports.marks import ASCII, EXCHANGE, UNICODE
from plait.reports.picture import picture
from plait.reports.words import sentences
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

AT_THE_END = (Part("compute", 0.0, 6.0), Part("transfer", 6.0, 8.0))
MANY = tuple(part for i in range(8) for part in (Part("compute", i, i + 0.75), Part("transfer", i + 0.75, i + 1.0)))


def span(parts, name="0F0"):
    return Span(0, parse_action(name), 0, 0.0, 8.0, 0, parts)


def drawn(parts, glyphs=UNICODE):
    return "".join(glyphs.of(mark) for mark in paint(segments([span(parts)]), 0.0, 0.5, 16))


def test_predicted_and_measured_exchanges_look_alike():
    assert drawn(AT_THE_END) == drawn(MANY)
    assert drawn(MANY).count(UNICODE.exchange) in (3, 4, 5)


def test_a_message_is_no_exchange():
    assert exchanged_s(span(MANY)) == 2.0
    assert exchanged_s(span((Part("transfer", 0.0, 8.0),), "0SF0")) == 0.0


def test_every_mark_has_its_own_character():
    assert all(len(set("".join(glyphs))) == len("".join(glyphs)) for glyphs in (UNICODE, ASCII))
    assert ASCII.of(EXCHANGE) == "x"


def test_the_legend_has_it_only_where_it_occurs():
    with_it = Timeline("measured", (span(MANY),))
    assert "exchange inside an action" in picture(None, with_it).plain
    assert "exchange" not in picture(None, Timeline("measured", (span(()),))).plain


def test_the_sentence_says_exchanges():
    said = sentences(None, Timeline("measured", (span(MANY),)))
    assert "Exchanges inside actions took 25 % of stage 0's time." in said
    assert not any(line.startswith("Transfers") for line in said)
