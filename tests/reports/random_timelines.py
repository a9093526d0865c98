"""Any timeline: spans that overlap, take no time, have parts or none, on ranks that share stages."""

from hypothesis import strategies as st

from plait.plans.action import Action, Kind
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

moments = st.floats(0, 0.1).map(lambda moment: round(moment, 6))
actions = st.builds(
    Action,
    round=st.integers(0, 12),
    stage=st.integers(0, 3),
    kind=st.sampled_from(Kind),
    micro_batch=st.integers(0, 11),
)


@st.composite
def spans(draw):
    begin, middle, end = sorted(draw(st.tuples(moments, moments, moments)))
    action = draw(actions)
    parts = ()
    if action.kind.receives and draw(st.booleans()):
        parts = (Part("wait", begin, middle), Part("transfer", middle, end))
    rank = action.stage if draw(st.booleans()) else 4 + action.stage
    return Span(0, action, rank, begin, end, draw(st.integers(0, 10_000)), parts)


def timelines(source, min_size=0):
    return st.lists(spans(), min_size=min_size, max_size=30).map(
        lambda found: Timeline(source, tuple(sorted(found, key=lambda span: span.start_s)))
    )
