"""Training in a tensor group: ours over shared memory against torch's DTensor over gloo, and against one process.

All variants are open at the same time and take turns. Every one starts from the same weights and tokens, and their
losses must agree after the same number of steps.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from harness import ratio, table, verdict
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

from plait.comm.shm import ShmEndpoint, ShmMesh
from plait.comm.tensor_group import EndpointGroup
from plait.nn.batch import Batch
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.nn.training.stage import TrainingStage
from plait.plans.round import MicroBatch, Row
from plait.prober.host import rank_environment
from plait.spec.model import ModelSpec, Rope
from plait.spec.shards import make_shards, shard_tensors
from plait.spec.tensors import stage_tensors

SPEC = ModelSpec("bench", "llama", 4, 512, 8, 8, 64, 1376, 8192, 1024, 1e-5, Rope(10000.0, 64), (None,) * 4)
BATCH, LENGTH, RATE = 4, 128, 0.01
ROUNDS, STEPS, TOKENS = 9, 2, 30
OURS, DTENSOR, ONE, PLAIN = "ours, tp=2 over shm", "DTensor, tp=2 over gloo", "ours, one process", "torch, one process"
THREADS = {OURS: 1, DTENSOR: 1, ONE: 2, PLAIN: 2}
RANKS = {OURS: 2, DTENSOR: 2, ONE: 1, PLAIN: 1}


def weights() -> dict[str, Tensor]:
    """The same for all."""
    generator = torch.Generator().manual_seed(0)
    shapes = stage_tensors(SPEC, 0, SPEC.layers)
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
        for name, shape in shapes.items()
    }


def told() -> tuple[Tensor, Tensor]:
    """Token ids and targets."""
    tokens, targets = torch.randint(0, SPEC.vocab, (2, BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    return tokens, targets


class Variant(Protocol):
    """What is measured, on one rank."""

    def step(self) -> float:
        """Forward, loss, backward and SGD; the mean loss."""

    def token(self) -> object:
        """A forward of one token."""


# --- ours ----------------------------------------------------------------------------------------------------


class Ours:
    """One rank of a tensor group, or all of it."""

    def __init__(self, endpoint: ShmEndpoint | None) -> None:
        rank, ranks = (0, 1) if endpoint is None else (endpoint.rank, endpoint.size)
        shard = make_shards(SPEC, ranks)[rank]
        group = None if endpoint is None else EndpointGroup(endpoint, tuple(range(ranks)))
        pieces = shard_tensors(SPEC, 0, SPEC.layers, shard)
        held = {name: tensor.clone() for name, tensor in weights().items()}
        for name, piece in pieces.items():
            if piece.axis is not None:
                held[name] = held[name].narrow(piece.axis, piece.first, piece.end - piece.first).contiguous()
        self.stage = TrainingStage(SPEC, 0, SPEC.layers, held, torch.float32, shard, group)
        self.decoder = StageModel(SPEC, 0, SPEC.layers, held, torch.float32, shard=shard, group=group)
        self.cache = KVCache(SPEC, 0, SPEC.layers, 1, 64, torch.float32, shard=shard)
        self.batch = Batch.of(MicroBatch((Row(0, 0, 0, 1, True),)))
        self.tokens, self.targets = told()

    def step(self) -> float:
        """See `Variant`."""
        self.stage.clear()
        passed = self.stage.forward(self.tokens, self.targets)
        self.stage.backward(passed, 1 / passed.valid)
        self.stage.complete()
        self.stage.update(RATE)
        assert passed.loss is not None
        return float(passed.loss) / passed.valid

    def token(self) -> object:
        """See `Variant`."""
        return self.decoder.forward(self.batch, self.tokens[0, :1], self.cache)


# --- torch's -------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SPEC.hidden))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, hidden] to the same."""
        return rms_norm(x, (SPEC.hidden,), self.weight, SPEC.norm_eps)


class TorchLayer(nn.Module):
    """A layer as one writes it in torch: the names are ours."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = Norm(), Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(SPEC.hidden, SPEC.hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(SPEC.hidden, SPEC.intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(SPEC.intermediate, SPEC.hidden, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """[batch, length, hidden] to the same."""
        normed = self.attn_norm(x)
        q, k, v = (
            part.view(*part.shape[:2], -1, SPEC.head_dim).transpose(1, 2)
            for part in (self.q(normed), self.k(normed), self.v(normed))
        )
        q, k = (part * cosines + turned(part) * sines for part in (q, k))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        normed = self.mlp_norm(x)
        return x + self.down(silu(self.gate(normed)) * self.up(normed))


def turned(heads: Tensor) -> Tensor:
    """Heads by a quarter turn, in halves."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


class TorchModel(nn.Module):
    """The whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SPEC.vocab, SPEC.hidden)
        self.layers = nn.ModuleList(TorchLayer() for _ in range(SPEC.layers))
        self.norm, self.head = Norm(), nn.Linear(SPEC.hidden, SPEC.vocab, bias=False)
        angles = torch.outer(torch.arange(LENGTH), 10000.0 ** -(torch.arange(0, 64, 2) / 64)).repeat(1, 2)
        self.cosines, self.sines = angles.cos(), angles.sin()

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocab]."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cosines[: tokens.shape[1]], self.sines[: tokens.shape[1]])
        return self.head(self.norm(x))


class Torch:
    """Plain, or with DTensor in its usual form: columns then rows, embedding by rows, loss over sharded logits."""

    def __init__(self, sharded: bool) -> None:
        self.model, self.sharded = TorchModel(), sharded
        self.model.load_state_dict(weights())
        if sharded:
            parallelize(self.model)
        parameters = list(self.model.parameters())
        groups = [
            [one for one in parameters if isinstance(one, DTensor)],
            [one for one in parameters if not isinstance(one, DTensor)],
        ]
        self.optimizer = torch.optim.SGD([{"params": group} for group in groups if group], RATE, foreach=True)
        self.tokens, self.targets = told()

    def step(self) -> float:
        """See `Variant`."""
        self.optimizer.zero_grad()
        with loss_parallel() if self.sharded else ExitStack():
            loss = cross_entropy(self.model(self.tokens).flatten(0, 1), self.targets.flatten())
            loss.backward()
        self.optimizer.step()
        return float((loss.full_tensor() if isinstance(loss, DTensor) else loss).detach())

    @torch.inference_mode()
    def token(self) -> object:
        """See `Variant`."""
        return self.model(self.tokens[:1, :1])


def parallelize(model: TorchModel) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    columns, rows = ("q", "k", "v", "gate", "up"), ("o", "down")
    plan: dict[str, Any] = {f"layers.*.{name}": ColwiseParallel() for name in columns}
    plan |= {f"layers.*.{name}": RowwiseParallel() for name in rows}
    plan["embed"] = RowwiseParallel(input_layouts=Replicate())
    plan["head"] = ColwiseParallel(use_local_output=False)
    parallelize_module(model, mesh, plan)


# --- one rank's process ---------------------------------------------------------------------------------------


def rank_main(name: str, rank: int, given: Mapping[str, Any]) -> None:
    """Do what the launcher's lines say, and tell the seconds of each and the last loss."""
    torch.set_num_threads(THREADS[name])
    if name == DTENSOR:
        dist.init_process_group("gloo", init_method=f"file://{given['meeting']}", rank=rank, world_size=2)
    with ExitStack() as stack:
        endpoint = stack.enter_context(ShmEndpoint.attach(given["shm"])) if name == OURS else None
        variant: Variant = Ours(endpoint) if name in (OURS, ONE) else Torch(sharded=name == DTENSOR)
        calls: Mapping[str, Callable[[], object]] = {"step": variant.step, "token": variant.token}
        for line in sys.stdin:
            what, count = line.split()
            start = time.perf_counter()
            for _ in range(int(count)):
                result = calls[what]()
            taken_s = (time.perf_counter() - start) / int(count)
            print(json.dumps([taken_s, result if what == "step" else 0.0]), flush=True)
    if name == DTENSOR:
        dist.destroy_process_group()


# --- the launcher ---------------------------------------------------------------------------------------------


class Open:
    """The processes of a variant, which wait for work."""

    def __init__(self, name: str, folder: str) -> None:
        ranks, threads = RANKS[name], THREADS[name]
        mesh = ShmMesh.create(ranks, capacity=2)
        environment = {**rank_environment(threads, ranks * threads), "GLOO_SOCKET_IFNAME": "lo"}
        self._processes = []
        for rank in range(ranks):
            given = {"shm": mesh.description(rank), "meeting": str(Path(folder, "meeting"))}
            command = [sys.executable, __file__, name, str(rank), json.dumps(given)]
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    pass_fds=mesh.descriptors(rank),
                    env=environment,
                )
            )
        mesh.close_parent()

    def ask(self, what: str, count: int) -> tuple[float, float]:
        """Seconds of one of `count`, of the slowest rank, and the last loss."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{what} {count}\n")
            process.stdin.flush()
        told = [json.loads(process.stdout.readline()) for process in self._processes if process.stdout is not None]
        return max(seconds for seconds, _ in told), told[0][1]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.communicate()


def measured(rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of a step and of a token, by variant and round; the first round only warms up."""
    steps: dict[str, list[float]] = {name: [] for name in RANKS}
    tokens: dict[str, list[float]] = {name: [] for name in RANKS}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        opened = {name: Open(name, folder) for name in RANKS}
        for one in opened.values():
            stack.callback(one.close)
        for number in range(rounds + 1):
            losses = []
            for name, one in opened.items():
                step_s, loss = one.ask("step", STEPS)
                token_s, _ = one.ask("token", TOKENS)
                losses.append(loss)
                if number:
                    steps[name].append(step_s)
                    tokens[name].append(token_s)
            assert max(losses) - min(losses) < 1e-3 * max(losses), f"losses differ: {losses}"
    return steps, tokens


def page(steps: Mapping[str, Sequence[float]], tokens: Mapping[str, Sequence[float]]) -> str:
    rows = [
        [name, THREADS[name], statistics.median(steps[name]) * 1e3, statistics.median(tokens[name]) * 1e3]
        for name in RANKS
    ]
    what = (
        f"A llama of {SPEC.layers} layers, hidden {SPEC.hidden}, {SPEC.heads} heads, gated MLP of {SPEC.intermediate}, "
        f"vocabulary {SPEC.vocab}, untied; float32. A step: batch {BATCH} × {LENGTH} tokens, forward, loss, backward, "
        "SGD. A token: one forward of one token, ours through the decoder with its cache. All start from the same "
        "weights, and their losses agree."
    )
    targets = [
        f"A step against DTensor: {verdict(ratio(steps[DTENSOR], steps[OURS]), 1.3)}",
        f"against one process with two threads: {verdict(ratio(steps[ONE], steps[OURS]), 0.92)}",
        f"a token against DTensor: {verdict(ratio(tokens[DTENSOR], tokens[OURS]), 5)}",
    ]
    headings = ["", "threads a rank", "a step, ms", "a token, ms"]
    return f"## Training in a tensor group\n\n{what}\n\n{table(headings, rows)}\n\n{'; '.join(targets)}."


def main() -> None:
    if len(sys.argv) == 4:
        rank_main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
        return
    rounds = int(sys.argv[1]) if len(sys.argv) == 2 else ROUNDS
    sys.stdout.write(page(*measured(rounds)) + "\n")


if __name__ == "__main__":
    main()
