"""The shared memory of one host as a backend of torch.distributed, for CPU tensors: DDP, FSDP2 and DTensor run over it.

    from plait.comm import process_group
    process_group.register()
    torch.distributed.init_process_group("plait")

Every process group has a mesh of its own, handed out over its store (`descriptors`): groups know nothing of each other.
A collective is done when its call returns, with `async_op=True` too: its work is complete at once. Sends and receives
move on whenever their group waits for something. Sums are added in rank order, the same bits on every rank; an average
is the sum divided. What is not a sum is gathered and reduced by every rank itself.

torch.distributed finds the methods here by their names, from Python and (those with a trampoline) from C++.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ReduceOp, Store
from typing_extensions import override

from plait.comm.contract import Endpoint, Group, Tag
from plait.comm.descriptors import share_mesh
from plait.comm.works import Finished, Message
from plait.errors import RunError

NAME = "plait"
CAPACITY = 16
"""Messages between two ranks that may lie unreceived; a further one waits with its sender."""

_REDUCTIONS: tuple[tuple[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]], ...] = (
    (ReduceOp.MIN, torch.minimum),
    (ReduceOp.MAX, torch.maximum),
    (ReduceOp.PRODUCT, torch.mul),
    (ReduceOp.BAND, torch.bitwise_and),
    (ReduceOp.BOR, torch.bitwise_or),
    (ReduceOp.BXOR, torch.bitwise_xor),
)

Tensors = Sequence[torch.Tensor]


def register() -> None:
    """Make "plait" known to torch.distributed, as a backend for CPU tensors. Idempotent."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _open, extended_api=True, devices=["cpu"])


def _open(given: Any, _options: object) -> PlaitGroup:
    """The process group that torch asks for, of which this process is a rank."""
    rank, size = given.group_rank, given.group_size
    timeout_s = given.timeout.total_seconds()
    turn = given.store.add(f"joins/{rank}", 1)  # a store may serve several groups of one name, one after the other
    store = PrefixStore(f"{turn}", given.store)
    threads = torch.get_num_threads() * size
    return PlaitGroup(share_mesh(store, NAME, rank, size, CAPACITY, threads, timeout_s), store, timeout_s)


class PlaitGroup(dist.ProcessGroup):
    """One process group of torch.distributed over a mesh of its own."""

    def __init__(self, endpoint: Endpoint, store: Store, timeout_s: float) -> None:
        super().__init__(endpoint.rank, endpoint.size)  # type: ignore[call-arg]
        self._endpoint, self._store, self._timeout_s = endpoint, store, timeout_s
        self._ranks = Group(tuple(range(endpoint.size)))
        self._lock = threading.RLock()  # an endpoint is one thread's; autograd may call from another
        self._moving: list[Message] = []
        self._counts: Counter[tuple[str, int, int]] = Counter()
        self._name = self._about = ""
        endpoint.idle = functools.partial(_move_all, self._moving)
        self._leave = weakref.finalize(self, endpoint.close)

    # --- what torch asks of any group -------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802, D102
        return NAME

    def getGroupName(self) -> str:  # noqa: N802, D102
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802, D102
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802, D102
        return self._about

    def setGroupDesc(self, about: str) -> None:  # noqa: N802, D102
        self._about = about

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc  # type: ignore[assignment]

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name that torch has given it."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What torch says of it."""
        return self._about

    @override
    def name(self) -> str:
        return NAME

    @override
    def shutdown(self) -> None:
        self._leave()

    @override
    def abort(self) -> None:
        self._endpoint.fail("its process group was aborted")

    # --- sums -------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Finished:  # type: ignore[override] # noqa: D102
        op = _op_of(opts)
        with self._lock:
            for tensor in tensors:
                self._reduce(_on_host(tensor), op)
        return Finished(list(tensors))

    allreduce_coalesced = allreduce

    def _reduce(self, tensor: torch.Tensor, op: Any) -> None:
        if op == ReduceOp.SUM:
            self._endpoint.all_reduce(self._ranks, tensor)
            return
        if _is_sum(op, tensor):
            before, after = _factors(op, self.size())
            tensor.mul_(before)
            self._endpoint.all_reduce(self._ranks, tensor).div_(after)
            return
        pieces = self._endpoint.all_gather(self._ranks, tensor.reshape(1, -1), [1] * self.size())
        with torch.no_grad():
            tensor.copy_(functools.reduce(_reduction(op), pieces).view(tensor.shape))

    def reduce(self, tensors: Tensors, opts: Any) -> Finished:  # type: ignore[override] # noqa: D102
        with self._lock:
            for tensor in tensors:
                total = _on_host(tensor).clone()
                self._reduce(total, _op_of(opts))
                if opts.rootRank == self.rank():
                    tensor.copy_(total)
        return Finished(list(tensors))

    def reduce_scatter(  # type: ignore[override] # noqa: D102
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> Finished:
        with self._lock:
            for output, pieces in zip(outputs, inputs, strict=True):
                whole = torch.cat([_on_host(piece).reshape(-1) for piece in pieces])
                self._scatter_sum(output, whole, [piece.numel() for piece in pieces], _op_of(opts))
        return Finished(list(outputs))

    def reduce_scatter_single(  # noqa: D102
        self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None
    ) -> Finished:
        _check_share(output, whole, self.size(), "reduce_scatter_tensor")
        with self._lock:
            flat = _on_host(whole).reshape(-1)
            self._scatter_sum(output, flat, [output.numel()] * self.size(), _op_of(opts))
        return Finished([output])

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def _scatter_sum(self, output: torch.Tensor, whole: torch.Tensor, sizes: list[int], op: Any) -> None:
        if op == ReduceOp.SUM or _is_sum(op, whole):
            before, after = _factors(op, self.size())
            total = self._endpoint.reduce_scatter(self._ranks, whole if before == 1 else whole * before, sizes)
            total = total if after == 1 else total / after
        else:
            pieces = self._endpoint.all_to_all(self._ranks, torch.split(whole, sizes))
            total = functools.reduce(_reduction(op), pieces)
        _fill(output, total)

    def reduce_scatter_single_coalesced(  # noqa: D102
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Finished:
        for output, whole in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, whole, opts)
        return Finished(list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    # --- what only moves --------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any) -> Finished:  # type: ignore[override] # noqa: D102
        with self._lock:
            for tensor in tensors:
                self._endpoint.broadcast(self._ranks, _on_host(tensor), opts.rootRank)
        return Finished(list(tensors))

    def allgather(  # type: ignore[override] # noqa: D102
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Finished:
        with self._lock:
            for into, mine in zip(outputs, inputs, strict=True):
                sizes = [piece.numel() for piece in into]
                whole = self._endpoint.all_gather(self._ranks, _on_host(mine).reshape(-1), sizes)
                for piece, came in zip(into, torch.split(whole, sizes), strict=True):
                    _fill(piece, came)
        return Finished([list(into) for into in outputs])

    allgather_coalesced = allgather  # type: ignore[assignment]

    def all_gather_single(  # noqa: D102
        self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None
    ) -> Finished:
        _check_share(mine, output, self.size(), "all_gather_into_tensor")
        with self._lock:
            sizes = [mine.numel()] * self.size()
            _fill(output, self._endpoint.all_gather(self._ranks, _on_host(mine).reshape(-1), sizes))
        return Finished([output])

    _allgather_base = all_gather_single  # type: ignore[assignment]

    def all_gather_single_coalesced(  # noqa: D102
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Finished:
        for output, mine in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, mine, opts)
        return Finished(list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def alltoall(  # noqa: D102
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Finished:
        self._swap(outputs, inputs)
        return Finished(list(outputs))

    def all_to_all_single(  # noqa: D102
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: Sequence[int] = (),
        input_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Finished:
        into = torch.split(output, list(output_sizes) or [len(output) // self.size()] * self.size())
        self._swap(into, torch.split(whole, list(input_sizes) or [len(whole) // self.size()] * self.size()))
        return Finished([output])

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def gather(  # type: ignore[override] # noqa: D102
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any
    ) -> Finished:
        for number, mine in enumerate(inputs):
            nothing = mine.new_empty(0)
            into = outputs[number] if opts.rootRank == self.rank() else [nothing] * self.size()
            self._swap(into, [mine if rank == opts.rootRank else nothing for rank in range(self.size())])
        return Finished([list(into) for into in outputs])

    def scatter(  # type: ignore[override] # noqa: D102
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any
    ) -> Finished:
        for number, output in enumerate(outputs):
            nothing = output.new_empty(0)
            pieces = inputs[number] if opts.rootRank == self.rank() else [nothing] * self.size()
            self._swap([output if rank == opts.rootRank else nothing for rank in range(self.size())], pieces)
        return Finished(list(outputs))

    def _swap(self, into: Tensors, pieces: Tensors) -> None:
        with self._lock:
            came = self._endpoint.all_to_all(self._ranks, [_on_host(piece) for piece in pieces])
        for output, piece in zip(into, came, strict=True):
            _fill(output, piece)

    def barrier(self, opts: Any = None) -> Finished:  # noqa: D102
        with self._lock:
            self._endpoint.barrier(self._ranks)
        return Finished([])

    def _start_coalescing(self, device: torch.device) -> None:
        """Calls between this and `_end_coalescing` are done at once, as all are."""

    def _end_coalescing(self, device: torch.device) -> Finished:
        return Finished([])

    # --- between two ranks ------------------------------------------------------------------------------

    def send(self, tensors: Tensors, to: int, tag: int) -> Message:  # noqa: D102
        (tensor,) = tensors
        label = self._label("send", to, tag)
        host = _on_host(tensor).detach()
        return self._start([tensor], lambda: self._endpoint.try_send(to, label, host))

    def recv(self, tensors: Tensors, source: int, tag: int) -> Message:  # noqa: D102
        (tensor,) = tensors
        label = self._label("receive", source, tag)
        _on_host(tensor)

        def move() -> bool:
            came = self._endpoint.try_receive(source, label)
            if came is not None:
                _fill(tensor, came)
            return came is not None

        return self._start([tensor], move)

    @override
    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        raise RunError('backend "plait" receives only from a rank that is named: give recv its src')

    def _label(self, what: str, other: int, tag: int) -> Tag:
        """Messages of one tag are matched in the order in which they were sent."""
        self._counts[what, other, tag] += 1
        return Tag(0, self._counts[what, other, tag], tag)

    def _start(self, tensors: list[torch.Tensor], move: Callable[[], bool]) -> Message:
        message = Message(tensors, move, self._wait_for)
        with self._lock:
            if not message.moved():
                self._moving.append(message)
        return message

    def _wait_for(self, message: Message, timeout_s: float | None) -> None:
        def ready() -> bool | None:
            _move_all(self._moving)
            return message.moved() or None

        with self._lock:
            self._endpoint.wait(ready, "a send or a receive", timeout_s or self._timeout_s)


def _move_all(moving: list[Message]) -> None:
    """Move on what has been begun; those of one link in their order."""
    moving[:] = [message for message in moving if not message.moved()]


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, if it may travel."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        kind = f"on {tensor.device}" if tensor.device.type != "cpu" else f"of layout {tensor.layout}"
        raise RunError(
            f'backend "plait" carries dense CPU tensors between the processes of one host, not a tensor {kind}: '
            'move it to the CPU, or give that device a backend of its own, as in "cpu:plait,cuda:nccl"'
        )
    return tensor


def _fill(output: torch.Tensor, came: torch.Tensor) -> None:
    """Copy what has come into the tensor that was given for it."""
    if output.numel() != came.numel() or output.dtype != came.dtype:
        raise RunError(
            f"a tensor of {came.numel()} items of {came.dtype} came, but the tensor given for it has "
            f"{output.numel()} of {output.dtype}: both ranks must name the same size and dtype"
        )
    with torch.no_grad():
        output.copy_(came.view(output.shape))


def _check_share(share: torch.Tensor, whole: torch.Tensor, ranks: int, what: str) -> None:
    if share.numel() * ranks != whole.numel():
        raise RunError(
            f"{what} of {ranks} ranks with {share.numel()} items each needs a tensor of {share.numel() * ranks} "
            f"items for all, not {whole.numel()}"
        )


def _op_of(opts: Any) -> Any:
    return ReduceOp.SUM if opts is None else opts.reduceOp


def _is_sum(op: Any, tensor: torch.Tensor) -> bool:
    """Whether it is a sum with a factor, which numbers that are not whole can have."""
    if not (op == ReduceOp.AVG or op == ReduceOp.PREMUL_SUM):  # `in` does not know both types of an operation
        return False
    if not tensor.is_floating_point():
        raise RunError(f"an average of {tensor.dtype} is not a whole number: sum, and divide as you need")
    return True


def _factors(op: Any, ranks: int) -> tuple[Any, int]:
    """What each rank's part is multiplied by, and the sum divided by."""
    if op == ReduceOp.AVG:
        return 1, ranks
    return (op.factor, 1) if op == ReduceOp.PREMUL_SUM else (1, 1)


def _reduction(op: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    for known, function in _REDUCTIONS:
        if op == known:
            return function
    raise RunError(f'backend "plait" has no reduction {op}')
