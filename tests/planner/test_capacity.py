"""Not enough memory is said before anything is loaded: need, free, shortfall, and what would fit."""

from __future__ import annotations

import pytest

from plait.errors import CapacityError
from plait.planner.capacity import PROCESS_BYTES, need_by_host, require_memory
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.spec.model import ModelSpec, Rope

MIB = 2**20
SPEC = ModelSpec(
    "tiny", "llama", 8, 1024, 16, 4, 64, 4096, 32_000, 8192, 1e-5, Rope(10_000.0, 64), (None,) * 8, tied=True
)


def plan(context: int = 8192, slots: int = 2, dtype: str = "float32") -> Plan:
    stages = (Stage((0, 4), (0,), dtype, dtype), Stage((4, 8), (1,), dtype, dtype))
    return Plan("tiny", Layout({"pp": 2}, stages), "layerwise", 1, 64, context, slots)


def test_the_need_is_the_sum_of_the_stages_and_their_processes() -> None:
    """By hand: weights of 8 layers and a tied embedding on both stages; keys and values of 2 × 8192 positions."""
    layer = 2 * 1024 * 1024 + 2 * 256 * 1024 + 3 * 4096 * 1024 + 2 * 1024
    weights = 4 * (8 * layer + 2 * 32_000 * 1024 + 1024)
    cache = 8 * 2 * 8192 * 2 * 4 * 64 * 4
    need = need_by_host(plan(), SPEC)["localhost"]
    workspace = need - weights - cache - 2 * PROCESS_BYTES
    assert 0 < workspace < 0.5 * (weights + cache)


def test_enough_is_enough() -> None:
    need = need_by_host(plan(), SPEC)
    require_memory(plan(), SPEC, need)
    require_memory(plan(), SPEC, {"another": 0})


def refusal(given: Plan, free: int) -> str:
    with pytest.raises(CapacityError) as error:
        require_memory(given, SPEC, {"localhost": free})
    return str(error.value)


def test_a_smaller_context_that_would_fit_is_named() -> None:
    need = need_by_host(plan(), SPEC)["localhost"]
    free = need_by_host(plan(4096), SPEC)["localhost"]
    missing = (need - free) / MIB
    assert refusal(plan(), free) == (
        f"tiny does not fit on localhost: it needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free, "
        f"{missing:.1f} MiB are missing; a context of 4096 would fit (--context 4096)"
    )


def test_a_smaller_format_that_would_fit_is_named() -> None:
    free = need_by_host(plan(1024, dtype="bfloat16"), SPEC)["localhost"]
    assert free < need_by_host(plan(64), SPEC)["localhost"]
    message = refusal(plan(), free)
    assert message.endswith("in bfloat16 a context of 1024 would fit (--dtype bfloat16 --context 1024)")


def test_nothing_fits() -> None:
    message = refusal(plan(), 100 * MIB)
    assert message.endswith(
        "no context and no weight format that Plait has would fit: use a smaller model or more machines"
    )
