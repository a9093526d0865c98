"""One answer faster: the demo model shared by two one-thread ranks, against one process of one and of two threads."""

from __future__ import annotations

import statistics
import sys

from harness import PROMPT, OpenModel, demo, make_plan, ratio, table, take_turns, verdict

from plait.generation.opened import Opened

TOKENS = 64
LENGTHS = (128, 512)
REPETITIONS = 7


def asked(opened: Opened, model: OpenModel) -> tuple[float, ...]:
    """Decoded tokens a second, and those of prompts of each length."""
    decoded = model.ask([opened.encode(PROMPT)], TOKENS).decode_tokens_per_s
    words = opened.encode("word " * 700)
    return decoded, *(length / model.ask([words[:length]], 1).prefill_s for length in LENGTHS)


def compared(opened: Opened, dtype: str) -> str:
    one, two, group = "one process, one thread", "one process, two threads", "--tp 2, one thread each"
    plans = {
        one: make_plan([30], dtype=dtype),
        two: make_plan([30], threads=2, dtype=dtype),
        group: make_plan([30], tp=2, dtype=dtype),
    }
    figures = take_turns(opened, plans, lambda model: asked(opened, model), REPETITIONS)
    rates = {name: list(zip(*found, strict=True)) for name, found in figures.items()}
    against = {name: [ratio(*sides) for sides in zip(rates[group], rates[name], strict=True)] for name in (one, two)}
    rows = [[name, *map(statistics.median, found)] for name, found in rates.items()]
    rows += [[f"--tp 2 ÷ {name}", *ratios] for name, ratios in against.items()]
    headings = ["tokens a second", f"decoding, {TOKENS} tokens", *(f"prompt of {length}" for length in LENGTHS)]
    targets = f"Decoding against two threads: {verdict(against[two][0], 0.95)}."
    if dtype == "float32":
        targets = f"Decoding against one thread: {verdict(against[one][0], 1.4)}. {targets}"
    return "\n\n".join([f"### One user, {dtype}", table(headings, rows), targets])


def main() -> None:
    opened = demo()
    sections = ["## Decoding in a tensor group"]
    sections += [compared(opened, dtype) for dtype in ("float32", "bfloat16")]
    sys.stdout.write("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
