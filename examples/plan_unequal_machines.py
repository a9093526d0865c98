"""Three unequal machines on Ethernet, a model that fits none of them: the best split, and why the others lose."""

import plait
from plait.spec.cluster_file import cluster_from_toml


def device(name: str, memory_gib: int, tflops: float, memory_gb_per_s: float) -> dict[str, object]:
    """A host's one GPU, as a cluster file would say it."""
    return {
        "name": f"{name}-gpu",
        "host": name,
        "memory_gib": memory_gib,
        "tflops": {"bfloat16": tflops},
        "memory_bandwidth_gb_per_s": memory_gb_per_s,
    }


cluster = cluster_from_toml(
    {
        "hosts": [{"name": "desk"}, {"name": "studio"}, {"name": "laptop"}],
        "devices": [device("desk", 24, 80, 900), device("studio", 48, 28, 400), device("laptop", 16, 14, 120)],
        "network": {
            "within_host": {"latency_us": 5, "bandwidth_gb_per_s": 20},
            "between_hosts": {"latency_us": 150, "bandwidth_gbit_per_s": 1},
        },
    }
)
choice = plait.plan("llama3-70b", cluster, plait.Job(prompt_tokens=512, max_tokens=256), weights="q4_0")

print(choice.reason)
for candidate in choice.candidates[1:5]:
    print(f"- {candidate.kind}: {candidate.loses}")
for rejected in choice.rejected[:3]:
    print(f"cannot be: {dict(rejected.split)}, {rejected.reason}")
for one in choice.break_even:
    print(one.text)
