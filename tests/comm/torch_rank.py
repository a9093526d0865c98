"""One rank of the tests of the backend of torch.distributed: runs every case, over gloo or over plait, and prints them.

python torch_rank.py BACKEND RANK SIZE FILE
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from plait.comm import process_group
from plait.errors import RunError


def numbers(rank: int, *shape: int) -> torch.Tensor:
    """Small whole numbers, so that any order of adding gives the same bits; other ones on every rank."""
    return torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(rank)).float()


def reductions() -> Any:
    rank, got = dist.get_rank(), {}
    for name in ("SUM", "MIN", "MAX", "PRODUCT"):
        tensor = numbers(rank, 3, 5)
        dist.all_reduce(tensor, getattr(ReduceOp, name))
        got[name] = tensor.tolist()
    bits = torch.tensor([rank + 1, 6])
    dist.all_reduce(bits, ReduceOp.BOR)
    work = dist.all_reduce(total := numbers(rank, 7), async_op=True)
    assert work is not None
    work.wait()
    assert work.is_completed()
    assert torch.equal(work.get_future().wait()[0], total)
    dist.reduce(root := numbers(rank, 4), 1)
    return [got, bits.tolist(), total.tolist(), root.tolist() if rank == 1 else []]


def moves() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.broadcast(spread := numbers(rank, 3), 1)
    dist.all_gather(pieces := [torch.zeros(2, 2) for _ in range(size)], numbers(rank, 2, 2))
    dist.all_gather_into_tensor(whole := torch.zeros(2 * size, 3), numbers(rank, 2, 3))
    dist.reduce_scatter(part := torch.zeros(3), [numbers(rank + index, 3) for index in range(size)])
    dist.reduce_scatter_tensor(share := torch.zeros(2, 3), numbers(rank, 2 * size, 3))
    dist.all_to_all_single(swapped := torch.zeros(size, 2), numbers(rank, size, 2))
    uneven = torch.zeros(size * (rank + 1), 2)
    dist.all_to_all_single(
        uneven, numbers(rank, sum(range(1, size + 1)), 2), [rank + 1] * size, list(range(1, size + 1))
    )
    dist.gather(numbers(rank, 2), kept := [torch.zeros(2) for _ in range(size)] if rank == 0 else None, 0)
    dist.scatter(dealt := torch.zeros(2), [numbers(index, 2) for index in range(size)] if rank == 1 else None, 1)
    dist.all_gather_object(objects := [None] * size, {"rank": rank})
    dist.barrier()
    tensors = [spread, *pieces, whole, part, share, swapped, uneven, dealt, *(kept or [])]
    return [[tensor.tolist() for tensor in tensors], objects]


def messages() -> Any:
    """More sends at once than a link holds, and both ways; a sum in between."""
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    received = [torch.zeros(1000) for _ in range(40)]
    works = [dist.isend(numbers(rank * 100 + index, 1000), after) for index in range(40)]
    works += [dist.irecv(tensor, before) for tensor in received]
    dist.all_reduce(total := torch.ones(1))
    for work in works:
        assert work is not None
        work.wait()
    operations = [
        dist.P2POp(dist.isend, numbers(rank, 5), after),
        dist.P2POp(dist.irecv, last := torch.zeros(5), before),
    ]
    for one in dist.batch_isend_irecv(operations):
        one.wait()
    return [torch.stack(received).sum(1).tolist(), total.item(), last.tolist()]


def subgroups() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([first, last]) for first in range(size) for last in range(first + 1, size)]
    mine = numbers(rank, 4)
    for group in groups:
        if dist.get_rank(group) >= 0:
            dist.all_reduce(mine, group=group)
    return mine.tolist()


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12))


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], rank: int) -> torch.Tensor:
    return model(numbers(rank, 6, 12)).square().mean()


def ddp() -> Any:
    wrapped = DistributedDataParallel(net := network())
    loss_of(wrapped, dist.get_rank()).backward()
    return [parameter.grad.tolist() for parameter in net.parameters() if parameter.grad is not None]


def tensor_parallel() -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = network()
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    loss = loss_of(net, 0)
    loss.backward()
    return [loss.item(), [parameter.grad.full_tensor().tolist() for parameter in net.parameters()]]  # type: ignore[union-attr]


def fsdp() -> Any:
    net = network()
    for part in (net[0], net[2], net):
        fully_shard(part, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        loss_of(net, dist.get_rank()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.full_tensor().tolist() for parameter in net.parameters()]  # type: ignore[attr-defined]


def ours() -> Any:
    """What gloo does not do: errors that tell, averages, tensors that do not lie in a row."""
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(torch.zeros(2, device="meta")),
        lambda: dist.all_reduce(torch.zeros(2, dtype=torch.int64), ReduceOp.AVG),
        lambda: dist.all_gather_into_tensor(torch.zeros(5), torch.zeros(2)),
        lambda: dist.recv(torch.zeros(2)),
        lambda: dist.all_reduce(torch.zeros(2).to_sparse()),
        lambda: dist.broadcast(torch.zeros(2, dtype=torch.uint16), 0),
    ]
    texts = []
    for call in calls:
        try:
            call()
        except RunError as error:
            texts.append(str(error))
    average = numbers(dist.get_rank(), 4)
    dist.all_reduce(average, ReduceOp.AVG)
    strided = numbers(dist.get_rank(), 4, 6)
    dist.all_reduce(strided[:, ::2])  # gloo sums the memory as it lies, not the tensor's elements
    return [texts, average.tolist(), strided.tolist()]


CASES = (reductions, moves, messages, subgroups, ddp, tensor_parallel, fsdp)


def rank_main(backend: str, rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder / backend}"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size)
    got = {case.__name__: case() for case in (*CASES, *((ours,) if backend == "plait" else ()))}
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"{backend}{rank}.json").write_text(json.dumps(got))


def main() -> None:
    size, folder = int(sys.argv[1]), Path(sys.argv[2])
    process_group.register()
    for backend in ("gloo", "plait"):
        ranks = []
        for rank in range(size):
            child = os.fork()
            if not child:
                rank_main(backend, rank, size, folder)
                return
            ranks.append(child)
        for child in ranks:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
