"""Not enough memory is said before anything is loaded: need, free, shortfall, and what would fit."""

from __future__ import annotations

import pytest

from plait.costs.memory import need_bytes
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


def grouped(tp: int, shares: tuple[int, ...] = ()) -> Plan:
    stages = tuple(Stage((4 * at, 4 * at + 4), tuple(range(tp * at, tp * at + tp)), shares=shares) for at in range(2))
    return Plan("tiny", Layout({"pp": 2, "tp": tp}, stages), "layerwise", 1, 64, 8192, 2)


def held(tp: int, shares: tuple[int, ...] = ()) -> int:
    """Weights and caches of all ranks alone."""
    plan = grouped(tp, shares)
    workspace = sum(need.workspace_bytes for need in need_bytes(plan.layout, SPEC, 2, 8192, 64))
    return need_by_host(plan, SPEC)["localhost"] - tp * (2 * PROCESS_BYTES + workspace)


@pytest.mark.parametrize("shares", [(), (3, 1)])
def test_a_tensor_group_divides_a_stage_and_repeats_its_norms(shares: tuple[int, ...]) -> None:
    """Two ranks, 16 heads as 8 + 8 or 12 + 4: the four KV heads divide, so only norms lie there twice."""
    norms = 4 * 1024 * (8 * 2 + 1)
    assert held(2, shares) == held(1) + norms


def test_kv_heads_that_two_ranks_read_lie_on_both() -> None:
    """Three ranks, heads as 6 + 5 + 5: KV heads 0-1, 1-2 and 2-3, two more than there are."""
    norms = 2 * 4 * 1024 * (8 * 2 + 1)
    keys_and_values = 2 * 8 * (2 * 64 * 1024 * 4 + 2 * 8192 * 2 * 64 * 4)
    assert held(3) == held(1) + norms + keys_and_values


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
