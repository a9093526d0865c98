"""The ranks of a probe as processes of this host, and what rank 0 says of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, NoReturn, Self

import msgspec

from plait import errors
from plait.errors import PeerLost, RunError
from plait.prober.host import rank_environment
from plait.prober.probe_rank import Broken, Doing, Found, Job, Said
from plait.spec.emulation import Emulation

if TYPE_CHECKING:
    from plait.comm.mesh import Mesh

Say = Callable[[str], None]

_EXIT_WAIT_S = 5.0


class ProbeProcesses:
    """Starts them; as a context manager it ends them, too. `threads`: of each. Their links are shared memory's, or
    emulated ones.
    """

    def __init__(
        self, ranks: int, threads: int, seconds: float, emulation: Emulation | None = None, say: Say | None = None
    ) -> None:
        from plait.comm.shm import ShmMesh
        from plait.prober.probe_links import CAPACITY

        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors: list[IO[bytes]] = []
        all_threads = ranks * threads
        mesh: Mesh
        if emulation is None:
            mesh = ShmMesh.create(ranks, CAPACITY, threads=all_threads)
        else:
            mesh = _emulated(emulation, CAPACITY, all_threads, say)
        try:
            for rank in range(ranks):
                host = 0 if emulation is None else emulation.hosts[rank]
                arguments = [json.dumps(mesh.description(rank)), _text(Job(rank, host, threads, seconds))]
                self._start(arguments, mesh.descriptors(rank), rank_environment(threads, all_threads, rank, ranks))
        except BaseException:
            self.stop()
            raise
        finally:
            mesh.close_parent()

    def _start(self, arguments: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str]) -> None:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - not a pipe, which nobody would read while it fills
        self._errors.append(errors)
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "plait.prober.probe_rank", *arguments],
                pass_fds=tuple(descriptors),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the front, which ends its ranks
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()

    @property
    def process_ids(self) -> Sequence[int]:
        """Each rank's process."""
        return [process.pid for process in self._processes]

    def found(self, say: Say) -> Found:
        """What rank 0 finds; `say` is told what it is doing. Errors: a rank's own; PeerLost where one died."""
        first = self._processes[0].stdout
        assert first is not None
        while line := first.readline():
            match msgspec.json.decode(line, type=Said):
                case Doing(words):
                    say(words)
                case Found() as found:
                    return found
                case broken:
                    self._explain(broken)
        self._explain(None)

    def stop(self) -> None:
        """End what still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _explain(self, first: Broken | None) -> NoReturn:
        """Raise the error that began it: a rank that died, else a rank's own error, else what rank 0 noticed."""
        said = {rank: broken for rank in range(len(self._processes)) if (broken := self._last_word(rank)) is not None}
        if first is not None:
            said[0] = first
        for rank, process in enumerate(self._processes):
            if rank not in said and process.returncode:
                raise PeerLost(f"rank {rank} {self._death(rank)} while it was measured", rank)
        own = next(((rank, one) for rank, one in said.items() if one.lost is None), None)
        if own is not None:
            rank, one = own
            kind = getattr(errors, one.kind, RunError)
            raise kind(one.message if len(self._processes) == 1 else f"rank {rank}: {one.message}")
        if first is None:
            raise PeerLost("rank 0 ended before its work was done", 0)
        raise PeerLost(first.message, first.lost or 0)

    def _last_word(self, rank: int) -> Broken | None:
        """What a rank failed with, once it has ended; None where it has not said."""
        process = self._processes[rank]
        try:
            output, _ = process.communicate(timeout=_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return None
        for line in output.splitlines():
            said = msgspec.json.decode(line, type=Said)
            if isinstance(said, Broken):
                return said
        return None

    def _death(self, rank: int) -> str:
        status = self._processes[rank].returncode
        if status < 0:
            return f"was killed by signal {-status} ({signal.Signals(-status).name})"
        self._errors[rank].seek(0)
        lines = self._errors[rank].read().decode(errors="replace").strip().splitlines()
        return f"ended with exit status {status}" + (f" ({lines[-1]})" if lines else "")


def _emulated(emulation: Emulation, capacity: int, threads: int, say: Say | None) -> Mesh:
    """Errors: SpecError where this machine is slower than the links that it shall emulate."""
    from plait.comm.emulated_mesh import EmulatedMesh
    from plait.prober.emulated import own_link, require_possible

    own = own_link(threads, say=say)
    for wire in set(emulation.wires.values()):
        require_possible(wire, own)
    return EmulatedMesh.create(capacity, emulation, threads=threads, own=own.hand_over)


def _text(job: Job) -> str:
    return msgspec.json.encode(job).decode()
