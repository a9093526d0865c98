"""A generation's figures, read off its timeline: the same way for predicted and measured runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from plait.plans.action import Kind
from plait.plans.round import Round
from plait.timeline.compare import summarise
from plait.timeline.timeline import Timeline

PHASES = ("ttft_s", "prefill_tokens_per_s", "decode_tokens_per_s", "time_per_token_s")
"""Keys of `generation_metrics` that are absent where no token came."""


def generation_metrics(
    timeline: Timeline, rounds: Sequence[Round], counts: Mapping[int, int] | None = None
) -> dict[str, float]:
    """The design's keys for a run of generation.

    `counts` holds how many tokens of each request were kept; without it all that were sampled count. `ttft_s` is the
    mean over requests. Prefill ends when every request has its first token; `decode_tokens_per_s` counts the tokens of
    all requests after that, `time_per_token_s` is the mean time between two tokens of one request.
    """
    start_s = summarise(timeline).start_s
    arrivals = _arrivals(timeline, rounds, counts)
    shares = summarise(timeline).whole
    metrics = {
        "tokens_per_s": _rate(sum(map(len, arrivals.values())), timeline.end_s - start_s),
        "bubble": shares.bubble,
        "comm_bytes": float(sum(span.payload_bytes for span in timeline.spans)),
        "compute_s": shares.compute_s,
        "transfer_s": shares.transfer_s,
        "wait_s": shares.wait_s,
    }
    if arrivals:
        metrics |= _phases(start_s, arrivals, _prompt_tokens(rounds))
    return metrics


def _phases(start_s: float, arrivals: Mapping[int, Sequence[float]], prompt_tokens: int) -> dict[str, float]:
    firsts = [times[0] for times in arrivals.values()]
    prefilled_s = max(firsts)
    later = [moment for times in arrivals.values() for moment in times if moment > prefilled_s]
    gaps = [(times[-1] - times[0]) / (len(times) - 1) for times in arrivals.values() if len(times) > 1]
    figures = (
        sum(firsts) / len(firsts) - start_s,
        _rate(prompt_tokens, prefilled_s - start_s),
        _rate(len(later), max(later, default=prefilled_s) - prefilled_s),
        sum(gaps) / len(gaps) if gaps else 0.0,
    )
    return dict(zip(PHASES, figures, strict=True))


def _arrivals(timeline: Timeline, rounds: Sequence[Round], counts: Mapping[int, int] | None) -> dict[int, list[float]]:
    """For each request, when its tokens reached the first stage, ascending.

    Every rank of the first stage's tensor group has a span of the same tokens: they count once, on its first rank.
    """
    front = min((span.rank for span in timeline.spans if span.action.stage == 0), default=0)
    work = {one.number: one.work for one in rounds}
    stages = len(rounds[0].actions) if rounds else 0
    kind = Kind.RECEIVE_TOKENS if stages > 1 else Kind.FORWARD
    times: dict[int, list[float]] = defaultdict(list)
    for span in sorted(timeline.spans, key=lambda span: span.end_s):
        action = span.action
        if action.kind is kind and action.stage == 0 and span.rank == front and action.round in work:
            for row in work[action.round][action.micro_batch].rows:
                if row.samples and (counts is None or len(times[row.request]) < counts.get(row.request, 0)):
                    times[row.request].append(span.end_s)
    return {request: moments for request, moments in times.items() if moments}


def _prompt_tokens(rounds: Sequence[Round]) -> int:
    """Positions computed up to each request's first token."""
    seen: set[int] = set()
    total = 0
    for one in rounds:
        for micro_batch in one.work:
            for row in micro_batch.rows:
                if row.request not in seen:
                    total += row.length
                    if row.samples:
                        seen.add(row.request)
    return total


def _rate(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
