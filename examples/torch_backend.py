"""Data-parallel training by torch itself, over our shared memory: two processes, one gradient.

On several cores of one host `init_process_group("plait")` takes the place of `"gloo"`.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from plait.comm import process_group

RANKS = 2


def rank_main(rank: int, meeting: str) -> None:
    """One rank: a step on its own half of the batch, with the mean of both gradients."""
    torch.set_num_threads(1)
    process_group.register()
    dist.init_process_group("plait", init_method=meeting, rank=rank, world_size=RANKS)
    torch.manual_seed(0)  # the same weights everywhere
    layer = nn.Linear(4, 1)
    model = DistributedDataParallel(layer)
    batch = torch.arange(8.0).view(RANKS, 4)
    model(batch[rank : rank + 1]).sum().backward()
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad[0], batch.mean(0))
    if rank == 0:
        print("the gradient on each of two ranks:", layer.weight.grad.tolist())
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, which meet through a file."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder, 'meeting')}"
        multiprocessing.spawn(rank_main, (meeting,), RANKS)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
