"""The worked numbers of the concept pages: each is computed here, by Plait's own formulas and planner, with its steps.

One example runs through the pages on generation: Llama 3.1 70B at 4.5 bits a weight (q4_0), two machines with one
RTX 4090 each, 1 Gb/s Ethernet with 100 µs between them. No device of the two holds the model.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from writing import table

from plait import Job, TrainingJob, plan
from plait.costs.memory import FORMAT_BYTES
from plait.costs.work import model_parameters
from plait.planner.result import Candidate, Choice
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import step_bytes
from plait.schedules import closed
from plait.spec.cluster import Cluster
from plait.spec.cluster_file import cluster_from_toml
from plait.spec.presets import cluster_preset, model_preset
from plait.units import format_bytes, format_seconds

LATENCY_S, BYTES_PER_S = 100e-6, 125e6
MODEL, FORMAT, GPU = "llama3-70b", "q4_0", "rtx-4090"
GUIDE = Path(__file__).resolve().parents[1] / "guides" / "unequal-machines.md"
HALF = 2
"""Bytes of a value in bfloat16."""
WORD = 4
"""Bytes of a value in float32."""


@lru_cache(maxsize=1)
def _two_machines() -> Cluster:
    hosts = [{"name": name, "devices": 1, "preset": GPU} for name in ("left", "right")]
    link = {"from": "left", "to": "right", "both_ways": True, "latency_us": 100, "bandwidth_gbit_per_s": 1}
    return cluster_from_toml({"hosts": hosts, "links": [link]})


@lru_cache(maxsize=1)
def _choice() -> Choice:
    return plan(MODEL, _two_machines(), Job(prompt_tokens=512, max_tokens=256), weights=FORMAT)


def _kind(choice: Choice, kind: str) -> Candidate:
    return next(one for one in choice.candidates if one.kind == kind)


def _weight_bytes() -> float:
    return model_parameters(model_preset(MODEL)).total * FORMAT_BYTES[FORMAT]


def layer_wise() -> str:
    """Time of a token of the running example, by hand and by the planner."""
    spec, device = model_preset(MODEL), _two_machines().devices[0]
    read_s = _weight_bytes() / device.memory_bandwidth
    hop_bytes = spec.hidden * HALF
    hop_s = LATENCY_S + hop_bytes / BYTES_PER_S
    planned = _kind(_choice(), "pipeline").predicted
    return (
        f"Llama 3.1 70B has {spec.layers} layers; at 4.5 bits a weight they are {_weight_bytes() / 1e9:.1f} GB, and an "
        f"RTX 4090 has {device.memory_bytes / 1e9:.1f} GB. Two machines with one each, 1 Gb/s and 100 µs between "
        "them:\n\n"
        f"- reading the weights once, at {device.memory_bandwidth / 1e9:,.0f} GB/s: {_weight_bytes() / 1e9:.1f} ÷ "
        f"{device.memory_bandwidth / 1e9:,.0f} = {read_s * 1e3:.1f} ms, half of it on each device. No cut makes this "
        "less;\n"
        f"- the hop to the second stage: {spec.hidden:,} values × {HALF} bytes = {hop_bytes:,} bytes, 100 µs + "
        f"{hop_bytes:,} ÷ 125 MB/s = {format_seconds(hop_s)};\n"
        f"- the token back to the first stage: 8 bytes, {format_seconds(LATENCY_S + 8 / BYTES_PER_S)}.\n\n"
        f"Together: {(read_s + hop_s + LATENCY_S) * 1e3:.1f} ms a token; the hops are "
        f"{100 * (hop_s + LATENCY_S) / (read_s + hop_s + LATENCY_S):.1f} % of it. `plait plan`, which takes 85 % of "
        f"the data sheet's bandwidth and counts the KV cache, says {planned['time_per_token_s'] * 1e3:.1f} ms, and "
        f"that each device waits {planned['bubble'] * 100:.0f} % of the time."
    )


def tensor_parallel() -> str:
    """The same two machines with a tensor group: what the sums take, and from which link on they pay."""
    spec, device = model_preset(MODEL), _two_machines().devices[0]
    choice, sums = _choice(), 2 * spec.layers
    size = spec.hidden * HALF
    sum_s = LATENCY_S + size / BYTES_PER_S
    half_s = _weight_bytes() / device.memory_bandwidth / 2
    pipeline, tensor = _kind(choice, "pipeline").predicted, _kind(choice, "tensor").predicted
    ends = {one.quantity: one for one in choice.break_even if one.kind == "tensor"}
    return (
        "The same model and the same two machines (1 Gb/s, 100 µs):\n\n"
        f"- each device reads half of every layer: {half_s * 1e3:.1f} ms a token instead of {2 * half_s * 1e3:.1f};\n"
        f"- sums: 2 × {spec.layers} layers = {sums}, each of {spec.hidden:,} values × {HALF} bytes = {size:,} bytes. "
        f"An all-reduce over t ranks sends 2 · (t − 1) ÷ t times that from each, here {size:,} bytes: at best "
        f"100 µs + {size:,} ÷ 125 MB/s = {format_seconds(sum_s)}, {sums} times = {sums * sum_s * 1e3:.1f} ms.\n\n"
        f"Together, at best: {(half_s + sums * sum_s) * 1e3:.1f} ms a token, of which the link takes "
        f"{100 * sums * sum_s / (half_s + sums * sum_s):.0f} %. `plait plan` says "
        f"{tensor['time_per_token_s'] * 1e3:.1f} ms, against {pipeline['time_per_token_s'] * 1e3:.1f} ms for two "
        f"stages: here the split *inside* layers loses. Its break-evens: {ends['bandwidth'].text}; "
        f"{ends['latency'].text}."
    )


def pipeline() -> str:
    """Bubbles of four stages by the closed forms."""
    rows = []
    for name, virtual in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2)):
        held = max(closed.in_flight(name, 4, virtual, 16)) / virtual
        rows.append((f"`{name}`", *(_bubble(name, virtual, m) for m in (4, 8, 16)), f"{held:g}"))
    needed = next(m for m in range(1, 1000) if 3 / (m + 3) < 0.05)
    return (
        "Four stages, eight micro-batches, GPipe or 1F1B: (4 − 1) ÷ (8 + 4 − 1) = 3 ÷ 11 = "
        f"{300 / 11:.1f} %. Twice the micro-batches: 3 ÷ 19 = {300 / 19:.1f} %. To come below 5 % it takes {needed} of "
        "them. The other schedules, with forward and both halves of the backward equally long, two stages a position "
        "for `interleaved` and `zb-v`:\n\n"
        + table(("schedule", "m = 4", "m = 8", "m = 16", "activations held (m = 16)"), rows)
        + "\n\n≥: only a lower bound, since the schedule likes more micro-batches. Held: on the fullest position, in "
        "those of one micro-batch through one position. [All schedules](../reference/schedules.md)."
    )


def _bubble(name: str, virtual: int, micro_batches: int) -> str:
    step_s = closed.step_s(name, 4, virtual, micro_batches, 1.0, 1.0, 1.0)
    sign = "" if closed.exact(name, 4, virtual, micro_batches) else "≥ "
    return f"{sign}{100 * (1 - 3 * virtual * micro_batches / step_s):.1f} %"


def many_users() -> str:
    """Weights read a token, for eight users of the demo model over two stages."""
    size = model_parameters(model_preset("smollm2-135m")).total * WORD
    rows = []
    for micro_batches in (1, 2, 4, 8):
        per_token = micro_batches * size / 8
        busy = min(micro_batches, 2) / 2
        rows.append((str(micro_batches), f"{busy * 100:.0f} %", f"{per_token / 1e6:,.0f} MB"))
    return (
        f"The demo model in float32 has {size / 1e6:,.0f} MB of weights. Eight users, two stages, one token for each "
        "user a round; m micro-batches read every weight m times a round, so m × "
        f"{size / 1e6:,.0f} ÷ 8 MB a token:\n\n"
        + table(("micro-batches", "stages busy, at best", "weights read a token"), rows)
        + "\n\nBusy is not fast. On two machines, with m = 2, both work all the time, and each reads its half twice; "
        "as far as a round's time is reading weights, it takes as long as with m = 1, where each reads once and then "
        "waits. What is won is the time that grows with the users: products, prompts, the cache. On *one* memory that "
        "both stages share, m = 2 reads twice the bytes of the first row, and where that memory is the limit it loses."
    )


def data_parallel() -> str:
    """Tokens a replica must compute so that its gradients can hide."""
    rows = []
    cases = (
        ("two desktops, 1 Gb/s", 2, 0.5e12, 125e6),
        ("two RTX 4090, 10 Gb/s", 2, 0.4 * 165.2e12, 1.25e9),
        ("64 A100, 25 GB/s each", 64, 0.5 * 312e12, 25e9),
    )
    for words, replicas, flops, bandwidth in cases:
        tokens = 4 * 2 * (replicas - 1) / replicas * flops / (6 * bandwidth)
        rows.append((words, f"{flops / 1e12:g}", f"{bandwidth / 1e9:g}", f"{tokens:,.0f}"))
    size = model_parameters(model_preset("llama3.2-1b")).total
    return (
        f"Llama 3.2 1B has {size / 1e9:.3f} · 10⁹ parameters. Two replicas, gradients in float32: each rank sends "
        f"2 · (2 − 1) ÷ 2 · {size / 1e9:.3f} · 10⁹ · 4 bytes = {size * 4 / 1e9:.2f} GB a step, over 1 Gb/s at least "
        f"{size * 4 / 125e6:.1f} s. Its computing takes 6 FLOP a parameter and token, so what matters is how many "
        "tokens a replica computes between two synchronisations. Setting 8 · (n − 1) ÷ n · P ÷ B = 6 · P · T ÷ F, the "
        "number of parameters falls out. With fewer tokens a replica and step than T, the link takes longer:\n\n"
        "    T = 8 · (n − 1) ÷ n · F ÷ (6 · B)\n\n"
        + table(("machines", "F, TFLOP/s reached", "B, GB/s", "T, tokens"), rows)
    )


def expert_parallel() -> str:
    """Bytes of the all-to-alls of one layer, and the memory of experts."""
    spec = model_preset("qwen3-235b-a22b")
    experts, counted = spec.experts, model_parameters(spec)
    assert experts is not None
    of_experts = sum(layer.experts for layer in counted.layers)
    per_token = experts.per_token * spec.hidden * HALF * 7 / 8
    choice = _with_experts()
    found = choice.chosen.split
    other = next(one for one in choice.candidates if one.split.ep == 1)
    return (
        f"Qwen3 235B-A22B: {spec.layers} layers of {experts.count} experts, {experts.per_token} for each token, hidden "
        f"size {spec.hidden:,}. Of its {counted.total / 1e9:.0f} · 10⁹ parameters {of_experts / 1e9:.0f} · 10⁹ are in "
        f"experts: in bfloat16 {of_experts * HALF / 1e9:.0f} GB, with ep = 8 {of_experts * HALF / 8e9:.0f} GB a rank. "
        f"A token goes to {experts.per_token} experts, 7 of 8 of them elsewhere: {experts.per_token} · {spec.hidden:,} "
        f"· 2 bytes · 7 ÷ 8 = {per_token:,.0f} bytes out, and as many back, in each layer: "
        f"{format_bytes(int(2 * spec.layers * per_token))} a token in a forward over all layers.\n\n"
        f"`plait plan` on 64 H100 in hosts of 8, a batch of 512 sequences of 4,096 tokens: pp {found.pp} × ep "
        f"{found.ep}, {choice.chosen.predicted['step_s']:.1f} s a step; the best way without an expert axis takes "
        f"{other.predicted['step_s']:.1f} s (pp {other.split.pp} × tp {other.split.tp}). Routing is taken as even, "
        "which real routers are not."
    )


@lru_cache(maxsize=1)
def _with_experts() -> Choice:
    return plan("qwen3-235b-a22b", cluster_preset("h100", 64), TrainingJob(batch=512, sequence=4096))


def braid() -> str:
    """The planner's mesh for GPT-3 on 1,024 A100, and what each axis sends."""
    chosen = plan("gpt3-175b", cluster_preset("a100", 1024), TrainingJob(batch=3072, sequence=2048)).chosen
    assert isinstance(chosen.plan, TrainingPlan)
    sent, split = step_bytes(model_preset("gpt3-175b"), chosen.plan), chosen.split
    where = {"tp": "NVSwitch in a host", "pp": "InfiniBand, between neighbours", "dp": "InfiniBand, once a step"}
    sizes = {"tp": split.tp, "pp": split.pp, "dp": split.dp}
    rows = [
        (f"`{axis}` = {sizes[axis]}", f"{sent[axis] / 1024 / 1e9:,.1f} GB", where[axis]) for axis in ("tp", "pp", "dp")
    ]
    figures = chosen.predicted
    return (
        "GPT-3 (175B), 1,024 A100 in hosts of 8, a batch of 3,072 sequences of 2,048 tokens. `plait plan` chooses "
        f"dp {split.dp} × pp {split.pp} × tp {split.tp}, {chosen.schedule}, {chosen.micro_batches} micro-batches: "
        f"{figures['step_s']:.1f} s a step, {figures['mfu'] * 100:.0f} % of the FLOP/s, bubble "
        f"{figures['bubble'] * 100:.1f} %. What a rank sends in a step, on average, by axis:\n\n"
        + table(("axis", "sent by a rank a step", "over"), rows)
        + f"\n\nThe formulas above are of a plain step. {_of_setup(chosen.plan)} The axis that sends most lies on the "
        "fastest wire. Swap `tp` and `dp`, and the first row crosses hosts."
    )


def _of_setup(planned: TrainingPlan) -> str:
    """What of a plan's setup changes what it sends."""
    setup, held = planned.setup, len(planned.layout.positions[0])
    told = []
    if setup.recompute != "none":
        told.append(f"it recomputes ({setup.recompute}), so that sums of a forward happen once more")
    if setup.sequence_split:
        told.append("activations are split along the sequence, so that each rank of a tensor group sends its part")
    if held > 1:
        told.append(f"a rank holds {held} stages, so that a micro-batch comes by {held} times")
    if setup.zero:
        told.append(f"with ZeRO-{setup.zero} gradients go one way as float32, weights back as bfloat16: 6 bytes, not 8")
    return f"In this plan {'; '.join(told)}." if told else ""


def quiz() -> str:
    """What the planner says of the running example."""
    choice = _choice()
    rows = [("one machine alone", "cannot be: " + choice.rejected[0].reason)]
    for one in sorted(choice.candidates, key=lambda each: each.predicted["time_per_token_s"]):
        figures = one.predicted
        words = "two stages" if one.kind == "pipeline" else "every layer over both"
        rows.append(
            (
                f"{words} ({one.kind})",
                f"{figures['time_per_token_s'] * 1e3:.1f} ms a token: compute {figures['compute_s'] * 1e3:.1f}, "
                f"transfer {figures['transfer_s'] * 1e3:.2f}, wait {figures['wait_s'] * 1e3:.1f}; "
                f"{figures['comm_bytes']:,.0f} bytes on the wire",
            )
        )
    head = ("way", "Llama 3.1 70B, two RTX 4090, 1 Gb/s and 100 µs, by `plait plan`")
    return table(head, rows) + "\n\nCompute, transfer and wait are milliseconds of a rank, the mean of both."


def unequal() -> str:
    """What the planner says of the cluster file in the guide on unequal machines."""
    found = re.search(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    choice = plan(MODEL, cluster_from_toml(tomllib.loads(found[1])), Job(512, 256), weights=FORMAT)
    chosen = choice.chosen
    stages = [
        f"{', '.join(names)} has layers {first} to {end - 1}"
        for names, (first, end) in zip(chosen.devices, chosen.cut, strict=False)
    ]
    others = {one.kind: one for one in reversed(choice.candidates) if one.kind != chosen.kind}
    rows = [(one.kind, _token_ms(one), one.loses.split("; ", 1)[-1]) for one in (chosen, *reversed(others.values()))]
    return f"For the file above it chooses {chosen.kind}: {'; '.join(stages)}. The best of every kind:\n\n" + table(
        ("kind", "ms a token", "why not"), rows
    )


def _token_ms(one: Candidate) -> str:
    return f"{one.predicted['time_per_token_s'] * 1e3:.1f}"


WORKED: Mapping[str, Callable[[], str]] = {
    "layer-wise": layer_wise,
    "tensor-parallel": tensor_parallel,
    "pipeline": pipeline,
    "many-users": many_users,
    "data-parallel": data_parallel,
    "expert-parallel": expert_parallel,
    "braid": braid,
    "quiz": quiz,
    "unequal": unequal,
}
"""By the name in a page's marker."""
