"""One process against `transformers` generate: decoding and prefill, same threads, same prompt, same weights."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import OpenModel, demo, make_plan, ratio, table, verdict

from plait.generation.opened import Opened
from plait.prober.host import rank_environment

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

PREFILL, TOKENS, REPETITIONS = 128, 40, 5
WANTED = {"float32": (1.1, 1.2), "bfloat16": (1.3, 1.2)}


class Transformers:
    """The same GGUF read by transformers, in a process of its own: one question a line, seconds as the answer."""

    def __init__(self, dtype: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--transformers", dtype, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(rank_environment(threads)),
        )
        self._answer()

    def ask(self, prompt: Sequence[int], tokens: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{tokens} {' '.join(map(str, prompt))}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(dtype: str, threads: int) -> None:
    """The other process: reads questions, generates, prints seconds."""
    import torch

    torch.set_num_threads(threads)
    model = their_model(getattr(torch, dtype))
    print("ready", flush=True)
    for line in sys.stdin:
        count, *ids = map(int, line.split())
        prompt = torch.tensor([ids])
        mask = torch.ones_like(prompt)
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                prompt, attention_mask=mask, min_new_tokens=count, max_new_tokens=count, do_sample=False, pad_token_id=0
            )
        print(time.perf_counter() - start, flush=True)


def their_model(dtype: torch.dtype) -> LlamaForCausalLM:
    """The demo model as transformers has it, with the weights that it reads from the same file itself."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    opened = demo()
    spec, rope = opened.spec, opened.spec.rope
    assert rope is not None
    config = LlamaConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.hidden,
        intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": rope.theta},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(opened.index.source, return_tensors=True, model_to_load=model)["tensors"]
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    assert missing in ([], ["lm_head.weight"]), missing
    model.tie_weights()
    return model.to(dtype).eval()


def bandwidth(threads: int) -> float:
    """Bytes a second that `threads` threads read from memory: the largest of several sums over 1 GB."""
    code = (
        "import torch, time, sys; torch.set_num_threads(int(sys.argv[1])); x = torch.ones(1 << 28); best = 0.0\n"
        "for _ in range(7):\n"
        "    start = time.perf_counter(); x.sum(); best = max(best, x.numel() * 4 / (time.perf_counter() - start))\n"
        "print(best)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(threads)], capture_output=True, text=True, check=True).stdout
    return float(out)


def compare(opened: Opened, dtype: str, threads: int) -> list[str]:
    prompt = list(opened.encode("word " * 200))[:PREFILL]
    theirs, ours = Transformers(dtype, threads), []
    other: list[tuple[float, float]] = []
    with OpenModel(opened, make_plan([30], threads=threads, dtype=dtype, context=256)) as model:
        for repetition in range(REPETITIONS + 1):
            first = theirs.ask(prompt, 1)
            whole = theirs.ask(prompt, TOKENS)
            timing = model.ask([prompt], TOKENS)
            if repetition:
                other.append((first, (whole - first) / (TOKENS - 1)))
                ours.append((timing.prefill_s, 1 / timing.decode_tokens_per_s))
    theirs.close()
    return _sections(dtype, threads, ours, other)


def _sections(dtype: str, threads: int, ours: list[tuple[float, float]], other: list[tuple[float, float]]) -> list[str]:
    weights = 134_515_008 * (4 if dtype == "float32" else 2)
    reached = weights / statistics.median(token for _, token in ours)
    possible = bandwidth(threads)
    rows = []
    for name, runs in (("transformers", other), ("Plait", ours)):
        prefill, token = (statistics.median(values) for values in zip(*runs, strict=True))
        rows.append([name, PREFILL / prefill, 1 / token, 100 * weights / token / possible])
    decode_gain = ratio([token for _, token in other], [token for _, token in ours])
    prefill_gain = ratio([first for first, _ in other], [first for first, _ in ours])
    wanted = WANTED[dtype]
    return [
        f"### {dtype}, {threads} thread{'s' if threads > 1 else ''}",
        table(["", "prefill tokens/s", "decode tokens/s", "% of memory bandwidth"], rows),
        f"Decoding: {verdict(decode_gain, wanted[0])}; prefill: {verdict(prefill_gain, wanted[1])}. "
        f"Weights are read at {reached / 1e9:.1f} GB/s of the {possible / 1e9:.1f} GB/s that a sum over 1 GB reaches.",
    ]


def main() -> None:
    if sys.argv[1:2] == ["--transformers"]:
        serve(sys.argv[2], int(sys.argv[3]))
        return
    opened = demo()
    assert Path(opened.index.source).is_file()
    sections = ["## One process against transformers"]
    for dtype in ("float32", "bfloat16"):
        sections += compare(opened, dtype, 1)
    sections += compare(opened, "float32", 2)
    sys.stdout.write("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
