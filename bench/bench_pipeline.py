"""What pipelining gives: micro-batches in flight together, a prompt in chunks; and what a split costs without."""

from __future__ import annotations

import statistics
import sys

from harness import PROMPT, OpenModel, demo, make_plan, ratio, table, take_turns, verdict

from plait.generation.opened import Opened
from plait.generation.planning import Options, measured_costs
from plait.generation.planning import make_plan as choose_plan
from plait.plans.plan import Plan

TOKENS = 24


def together(opened: Opened, dtype: str, cut: tuple[int, int], wanted: float) -> str:
    prompt = opened.encode(PROMPT)
    plans = {
        "2 × 4 users, in flight together": make_plan(
            cut, schedule="pipelined", micro_batches=2, slots=8, dtype=dtype, chunk=64
        ),
        "one after the other (4 users alone)": make_plan(cut, schedule="pipelined", slots=4, dtype=dtype, chunk=64),
        "8 users, one layer-wise micro-batch, all cores": make_plan(cut, threads=2, slots=8, dtype=dtype, chunk=64),
        "auto": auto(opened, dtype, [prompt] * 8),
    }

    def ask(model: OpenModel) -> float:
        users = model.plan.slots
        return model.ask([prompt] * users, TOKENS).decode_tokens_per_s

    figures = take_turns(opened, plans, ask)
    names = list(plans)
    rows = [
        [name, statistics.median(figures[name]), ratio(figures[name], figures[names[1]]), describe(plan)]
        for name, plan in plans.items()
    ]
    gain = ratio(figures[names[0]], figures[names[1]])
    slower = min(ratio(figures["auto"], figures[names[0]]), ratio(figures["auto"], figures[names[2]]))
    return "\n\n".join(
        [
            f"### Two stages, {dtype}, 8 users: decoded tokens a second of all users",
            table(["", "tokens/s", "against one after the other", "plan"], rows),
            f"Together against one after the other, each micro-batch of 4 alone in flight: {verdict(gain, wanted)}. "
            f"`auto` against the faster of the others: {slower:.2f} ×. Its reason: {plans['auto'].reason}",
        ]
    )


def auto(opened: Opened, dtype: str, prompts: list[tuple[int, ...]]) -> Plan:
    options = Options(stages=2, dtype=dtype, max_tokens=TOKENS)
    return choose_plan(opened, prompts, options, measured_costs)


def describe(plan: Plan) -> str:
    layers = ", ".join(str(end - first) for first, end in plan.layout.cut)
    return (
        f"{plan.schedule}, {plan.micro_batches} micro-batches, layers {layers}, threads {plan.layout.stages[0].threads}"
    )


def chunks(opened: Opened) -> str:
    prompt = list(opened.encode("word " * 700))[:512]
    whole, planned = "one process, one thread, whole", "two one-thread stages, as planned"
    options = Options(stages=2, schedule="pipelined", threads=1, max_tokens=1)
    plans = {whole: make_plan([30]), planned: choose_plan(opened, [prompt], options, measured_costs)}
    for size in (64, 128, 192, 256):
        cut = plans[planned].layout.cut[0][1]
        name = f"two one-thread stages, chunks of {size}"
        plans[name] = make_plan([cut, 30 - cut], schedule="pipelined", chunk=size)
    figures = take_turns(opened, plans, lambda model: model.ask([prompt], 1).prefill_s, 7)
    rows = [
        [name, 1e3 * statistics.median(values), 512 / statistics.median(values), ratio(figures[whole], values)]
        for name, values in figures.items()
    ]
    chosen = plans[planned]
    return "\n\n".join(
        [
            "### A prompt of 512 tokens, float32",
            table(["", "ms", "tokens/s", "against one process"], rows),
            f"Planned: chunks of {chosen.chunk}, {describe(chosen)}. "
            f"Against one process: {verdict(ratio(figures[whole], figures[planned]), 1.4)}.",
        ]
    )


def split_cost(opened: Opened, dtype: str) -> str:
    """Case S12: two processes on one host must not be slower than one with the same cores."""
    prompt = opened.encode(PROMPT)
    plans = {
        "one process, two threads": make_plan([30], threads=2, dtype=dtype),
        "two stages layer-wise, two threads": make_plan((15, 15), threads=2, dtype=dtype),
    }
    figures = take_turns(opened, plans, lambda model: model.ask([prompt], TOKENS * 2).decode_tokens_per_s, 7)
    one, two = figures.values()
    share = ratio(two, one)
    rows = [[name, statistics.median(values), 1e3 / statistics.median(values)] for name, values in figures.items()]
    return "\n\n".join(
        [
            f"### One user, layer-wise on one host, {dtype} (case S12)",
            table(["", "tokens/s", "ms a token"], rows),
            f"Two stages against one process: {verdict(share, 0.9)}.",
        ]
    )


def main() -> None:
    opened = demo()
    sections = ["## Pipelining"]
    sections.append(together(opened, "float32", (19, 11), 1.55))
    sections.append(together(opened, "bfloat16", (19, 11), 1.6))
    sections.append(chunks(opened))
    sections += [split_cost(opened, dtype) for dtype in ("float32", "bfloat16")]
    sys.stdout.write("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
