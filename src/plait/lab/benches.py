"""What the experiments with a model run on: the demo model as processes of this host, or in the short form a small one.

The short form's model is random and so small that computing takes next to nothing: what is left are the links, whose
time is known. Its ranks are threads of this process, which talk as if over the same links.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from plait.costs.calibration import Calibration, Setting
from plait.costs.curves import Curve, Grid
from plait.costs.exchange_times import ExchangeTimes
from plait.costs.measured import Kernel, MeasuredCosts
from plait.costs.protocol import FREE, LinkCost
from plait.generation.launch import Ranks
from plait.lab.answers import Bench, Way
from plait.lab.experiment import Say, Size
from plait.plans.layout import Layout
from plait.plans.plan import Plan
from plait.spec.cluster import Wire
from plait.spec.emulation import EmulatedLinks
from plait.spec.model import ModelSpec
from plait.weights.index import WeightsIndex, open_index

RECENT_S = 1800.0
"""What was measured of this host longer ago than this is measured again: the experiments compare with the present."""

QUESTION = "What is gravity?"


@contextmanager
def opened(size: Size, say: Say, tokens: int = 24, repetitions: int = 3) -> Iterator[Bench]:
    """The model of an experiment of that size. Errors: WeightsError where the demo model is not installed."""
    if size == "full":
        yield _demo(say, tokens, repetitions)
        return
    with tempfile.TemporaryDirectory(prefix="plait-lab-") as folder:
        index = small_model(Path(folder))
        costs = _SmallCosts(index.spec)
        yield Bench("small", index, tuple(range(8)), 5, 2, _Threads(index).launch, costs.of)


# --- the demo model -----------------------------------------------------------------------------------------


def _demo(say: Say, tokens: int, repetitions: int) -> Bench:
    from plait.generation.opened import open_model

    model = open_model("demo", say)
    costs = _HostCosts(model.spec, say)
    return Bench(
        "demo", model.index, model.encode(QUESTION), tokens, repetitions, _Processes(model.index).launch, costs.of
    )


@dataclass(frozen=True, slots=True)
class _Processes:
    index: WeightsIndex

    def launch(self, way: Way, plan: Plan) -> Ranks:
        """Each rank a process."""
        from plait.generation.launch import ProcessRanks

        emulation = way.link.among(plan.layout.ranks) if way.link else None
        return ProcessRanks(plan, self.index, emulation=emulation)


@dataclass(frozen=True, slots=True)
class _HostCosts:
    """What this host was measured to take lately, or is measured now."""

    spec: ModelSpec
    say: Say
    known: dict[object, MeasuredCosts] = field(default_factory=dict)

    def of(self, way: Way, plan: Plan) -> MeasuredCosts:
        """Of the way. Ways of the same kernel share what was measured of it: that of two stages."""
        rows = -(-plan.slots // plan.micro_batches)
        key = way.tp, 1 if rows == 1 else 8, way.link
        if key not in self.known:
            self.known[key] = self._measured(way, plan, rows)
        return self.known[key]

    def _measured(self, way: Way, plan: Plan, rows: int) -> MeasuredCosts:
        from plait.prober.local import local_costs

        layout = plan.layout if way.tp > 1 else _two_stages(plan)
        costs = local_costs(layout, self.spec, rows, say=self.say)
        if any(time.time() - one.measured_at_s > RECENT_S for one in costs.calibrations.values()):
            costs = local_costs(layout, self.spec, rows, fresh=True, say=self.say)
        return over(costs, way.link)


def _two_stages(plan: Plan) -> Layout:
    """The plan's layers on two ranks: what one rank takes beside another is measured there."""
    first, last = plan.layout.stages[0], plan.layout.stages[-1]
    middle = max(1, last.layers[1] // 2)
    stages = (
        replace(first, layers=(0, middle), ranks=(0,)),
        replace(first, layers=(middle, last.layers[1]), ranks=(1,)),
    )
    return Layout({"pp": 2}, stages, plan.layout.link_capacity)


def over(costs: MeasuredCosts, link: EmulatedLinks | None) -> MeasuredCosts:
    """The costs where `link` joins all ranks instead of shared memory.

    An exchange between two ranks takes latency + bytes ÷ bandwidth more: each sends the other what it has, at the same
    time. Of a gather that is half of the whole.
    """
    if link is None:
        return costs
    wire = link.wire
    exchanges = {
        kernel: ExchangeTimes(
            _longer(times.all_reduce, wire, 1.0),
            _longer(times.reduce_scatter, wire, 0.5),
            _longer(times.all_gather, wire, 0.5),
        )
        for kernel, times in costs.exchanges.items()
    }
    return replace(costs, any_link=LinkCost(wire.latency_s, wire.bandwidth), exchanges=exchanges)


def _longer(curve: Curve, wire: Wire, share: float) -> Curve:
    """With what the wire takes for that share of the bytes."""
    at = (0.0, *curve.at) if curve.at[0] > 0 else curve.at
    return Curve(at, tuple(curve.value(size) + wire.latency_s + share * size / wire.bandwidth for size in at))


# --- the small model ----------------------------------------------------------------------------------------

_SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def small_model(folder: Path) -> WeightsIndex:
    """A random Llama of four layers, written to `folder`."""
    import torch
    from safetensors.torch import save_file

    from plait.spec.huggingface import spec_from_config
    from plait.weights.names import huggingface_tensors

    names = huggingface_tensors(spec_from_config(_SMALL, "small"), {"model.": None})
    generator = torch.Generator().manual_seed(1)
    tensors = {one.name: torch.randn(*one.shape, generator=generator) * 0.1 for one in names}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_SMALL))
    return open_index(folder)


@dataclass(frozen=True, slots=True)
class _Threads:
    index: WeightsIndex

    def launch(self, way: Way, plan: Plan) -> Ranks:
        """Each rank a thread of this process."""
        from plait.comm.emulated_mesh import emulated_threads
        from plait.comm.threads import thread_mesh
        from plait.generation.launch import ThreadRanks

        ranks, capacity = plan.layout.ranks, plan.layout.link_capacity
        if way.link is None:
            return ThreadRanks(plan, self.index, endpoints=thread_mesh(ranks, capacity))
        return ThreadRanks(plan, self.index, endpoints=emulated_threads(way.link.among(ranks), capacity))


@dataclass(frozen=True, slots=True)
class _SmallCosts:
    """Computing and exchanging take nothing: only links are predicted."""

    spec: ModelSpec

    def of(self, way: Way, plan: Plan) -> MeasuredCosts:
        """Of the way."""
        kernels = {Kernel.of(plan.layout, stage) for stage in range(len(plan.layout.stages))}
        none = Curve((1.0,), (0.0,))
        grid = Grid((1.0,), (1.0,), ((0.0,),))
        setting = Setting("", "", 1, "", "float32", "float32", 1, "", self.spec.layers, 1, 1)
        calibration = Calibration(setting, grid, grid, none, none, grid, none)
        exchanges = {kernel: ExchangeTimes(none, none, none) for kernel in kernels if kernel.tp > 1}
        return over(MeasuredCosts(self.spec, dict.fromkeys(kernels, calibration), FREE, exchanges), way.link)
