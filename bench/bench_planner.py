"""The planner's own speed: training searches from 64 to 65,536 GPUs, and the exact cut over 16 unequal machines.

Every search runs in a fresh Python, cold after its imports; figures are medians of such processes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from math import log10

from harness import table, verdict

REPETITIONS = 3
SIZES = (64, 256, 1024, 3072, 4096, 16384, 65536)
MODELS = {"gpt3-175b": SIZES, "gpt-1t": (1024, 3072, 4096, 16384, 65536)}
BATCH, SEQUENCE = 3072, 2048
LIMITS = {3072: 1.0, 16384: 3.0}
WIDTH = 40


def measure_search(model: str, gpus: int) -> dict[str, float | str]:
    """One search in this process: wall and processor seconds, ways looked at, and what was chosen."""
    from plait.costs.training import TrainingModel
    from plait.planner.grid import Grid
    from plait.planner.selection import Selection
    from plait.planner.space import TrainingLimits
    from plait.planner.training import plan_training
    from plait.spec.cluster import equal_machine
    from plait.spec.job import TrainingJob
    from plait.spec.presets import cluster_preset, model_preset

    spec, cluster, job = model_preset(model), cluster_preset("a100", gpus), TrainingJob(BATCH, SEQUENCE)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    choice = plan_training(spec, cluster, job)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    machine = equal_machine(cluster)
    assert machine is not None
    looked_at = Selection(Grid(TrainingModel(spec, job, machine), gpus, TrainingLimits())).looked_at
    split = choice.chosen.split
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "ways": looked_at,
        "chosen": f"dp {split.dp} × pp {split.pp} × tp {split.tp}, {choice.chosen.schedule}",
        "step_s": choice.chosen.predicted["step_s"],
    }


def measure_cut() -> dict[str, float | str]:
    """128 layers over 16 machines, all different, over directed links, all different."""
    import numpy as np

    from plait.planner.exact import Problem, best_throughput

    rng, machines, layers = np.random.default_rng(0), 16, 128
    speed = rng.uniform(1, 4, machines)
    problem = Problem(
        layer_s=np.outer(speed, np.ones(layers)),
        fixed_s=np.zeros(machines),
        first_s=0.1 * speed,
        last_s=speed,
        layer_bytes=np.ones(layers),
        fixed_bytes=np.zeros(machines),
        first_bytes=1.0,
        last_bytes=1.0,
        free_bytes=rng.uniform(8, 40, machines),
        hand_over_s=rng.uniform(0, 1, (machines, machines)),
        latency_s=np.zeros((machines, machines)),
        back_s=np.zeros((machines, machines)),
    )
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    found = best_throughput(problem)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    assert found is not None
    assert found.exact
    return {"wall_s": wall_s, "cpu_s": cpu_s}


def fresh(*arguments: str) -> dict[str, float | str]:
    """The medians of several fresh processes that measure the same."""
    found = []
    for _ in range(REPETITIONS):
        done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout))
    medians = {key: statistics.median(one[key] for one in found) for key in ("wall_s", "cpu_s")}
    return {**found[0], **medians}


def bars(rows: dict[int, float]) -> str:
    """Seconds by number of GPUs, both on logarithmic scales."""
    lines = []
    for gpus, seconds in rows.items():
        length = max(1, round(WIDTH * (log10(seconds) + 2) / 3))  # 10 ms to 10 s
        lines.append(f"{gpus:>7,} {'█' * length} {seconds:.2f} s")
    return "```\n" + "\n".join(lines) + "\n```"


def main() -> None:
    rows: list[list[object]] = []
    seconds: dict[str, dict[int, float]] = {}
    for model, sizes in MODELS.items():
        for gpus in sizes:
            one = fresh("search", model, str(gpus))
            seconds.setdefault(model, {})[gpus] = float(one["wall_s"])
            ways = f"{one['ways']:,}"
            rows.append([model, f"{gpus:,}", ways, one["wall_s"], one["cpu_s"], one["chosen"], one["step_s"]])
    cut = fresh("cut")
    largest = seconds["gpt-1t"]
    sections = [
        "## The planner's own speed",
        f"A training step of {BATCH:,} sequences of {SEQUENCE:,} tokens on hosts of 8 A100: the whole search with its\n"
        "explanations, the ten best replayed included, in one process, cold after its imports.",
        table(["model", "GPUs", "ways looked at", "s", "s of processor", "chosen", "predicted step, s"], rows),
        "gpt-1t, seconds of a search by the number of GPUs, 10 ms to 10 s on a logarithmic scale:",
        bars(largest),
        *(
            f"gpt-1t on {gpus:,} GPUs: {verdict(largest[gpus], limit, ' s', at_most=True)}."
            for gpus, limit in LIMITS.items()
        ),
        "The exact cut of 128 layers over 16 machines, all different, over directed links, all different: "
        f"{verdict(float(cut['wall_s']), 1.0, ' s', at_most=True)}.",
    ]
    sys.stdout.write("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["search", model, gpus]:
            json.dump(measure_search(model, int(gpus)), sys.stdout)
        case ["cut"]:
            json.dump(measure_cut(), sys.stdout)
        case _:
            main()
