"""Torch's own training, to be compared with: one process, DistributedDataParallel, and its 1F1B pipeline, over gloo."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from bench_tensor import RATE, SPEC, TorchModel, weights
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

LENGTH = 128


def told(batch: int) -> tuple[Tensor, Tensor]:
    """Token ids and targets [batch, length] of every step, the same for all."""
    generator = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(0, SPEC.vocab, (2, batch, LENGTH), generator=generator)
    return tokens, targets


def meet(meeting: str, rank: int, ranks: int) -> None:
    """Join the gloo group of this variant."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over tokens."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


class TorchReplica:
    """A plain model and SGD, of one process or of DDP's `ranks`; each has its part of the batch."""

    def __init__(self, batch: int, rank: int = 0, ranks: int = 1) -> None:
        model = TorchModel()
        model.load_state_dict(weights())
        self.model: nn.Module = DistributedDataParallel(model, gradient_as_bucket_view=True) if ranks > 1 else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE, foreach=True)
        self.tokens, self.targets = (each.chunk(ranks)[rank] for each in told(batch))

    def step(self, count: int) -> float:
        """So many steps; the loss of the last, of this rank's part."""
        for _ in range(count):
            self.optimizer.zero_grad(set_to_none=False)
            loss = loss_of(self.model(self.tokens), self.targets)
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())


class TorchPart(nn.Module):
    """Layers [first, end) of the model, with the embedding or the head where they belong to it."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__()
        whole = TorchModel()
        whole.load_state_dict(weights())
        self.embed = whole.embed if first == 0 else None
        self.layers = whole.layers[first:end]
        self.norm, self.head = (whole.norm, whole.head) if end == SPEC.layers else (None, None)
        self.cosines, self.sines = whole.cosines, whole.sines

    def forward(self, x: Tensor) -> Tensor:
        """Token ids or activations to activations or logits."""
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


class TorchPipeline:
    """One rank of `torch.distributed.pipelining` with its 1F1B schedule."""

    def __init__(self, batch: int, micro_batches: int, cut: Sequence[int], rank: int) -> None:
        first, end = sum(cut[:rank]), sum(cut[: rank + 1])
        self.part = TorchPart(first, end)
        stage = PipelineStage(self.part, rank, len(cut), torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, micro_batches, loss_fn=loss_of)
        self.optimizer = torch.optim.SGD(self.part.parameters(), RATE, foreach=True)
        self.tokens, self.targets = told(batch)
        self.is_first, self.is_last = rank == 0, rank == len(cut) - 1

    def step(self, count: int) -> float | None:
        """So many steps; the loss of the last, on the last rank."""
        losses: list[Tensor] = []
        for _ in range(count):
            losses.clear()
            self.optimizer.zero_grad(set_to_none=False)
            inputs = (self.tokens,) if self.is_first else ()
            if self.is_last:
                self.schedule.step(*inputs, target=self.targets, losses=losses)
            else:
                self.schedule.step(*inputs)
            self.optimizer.step()
        return float(torch.stack(losses).detach().mean()) if losses else None
