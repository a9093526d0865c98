"""Measures what one layer of a model takes on this host, alone and beside others, and keeps the answer.

Each measuring process is fresh and has the threads and the environment of a rank. While it measures alone, the whole
model goes through the caches, as in a real step: layers that fit into them look twice as fast as they are.
"""

from __future__ import annotations

import hashlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import msgspec
import platformdirs

from plait.costs.calibration import Calibration, Setting, Together, read, write
from plait.costs.curves import Curve, Grid
from plait.costs.measured import Kernel
from plait.plans.rules import DTYPE_BYTES
from plait.prober.host import Others, cpu_model, doubtful, torch_version, usable_cores
from plait.prober.messages import Alone, Beside, Job, Timed, Work
from plait.prober.process import MeasuringProcess
from plait.spec.model import ModelSpec
from plait.spec.tensors import layer_tensors

Say = Callable[[str], None]

MOST_TOGETHER = 4
MOST_BYTES = 2 << 30
"""Layers of larger models are measured on as many as these bytes hold: far more than any cache."""

_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_CACHED = (64, 640)
_LENGTHS = (16, 64, 128, 512)
_STARTS = (0, 64, 512)
_BESIDE_CACHED, _BESIDE_LENGTH = 256, 128
_BESIDE_S = 0.2
_PREFILL = (2, 0.05)
"""How often at least, and for how many seconds, each piece of a prompt is measured."""


def calibrate(
    spec: ModelSpec,
    kernel: Kernel,
    concurrent: int = 1,
    rows: int = 1,
    *,
    fresh: bool = False,
    say: Say | None = None,
) -> Calibration:
    """Seconds of one layer of `spec` as `kernel` computes it, while up to `concurrent` ranks compute at once.

    Of a tensor group the largest shard is measured, without exchanges. `rows` is how many rows decode together,
    usually. Kept in the user's cache directory; `fresh` measures again. `say` is told when it takes a while.
    """
    setting = _setting(spec, kernel, _together_at_most(concurrent, kernel.tp), rows)
    path = calibration_path(setting)
    known = None if fresh else read(path)
    if known is not None and known.setting == setting and not doubtful(known.others, known.measured_at_s):
        return known
    if say is not None:
        say(f"measuring {_words(kernel)} of this machine, once")
    with Others() as others:
        calibration = _measure(spec, setting)
    calibration = replace(calibration, others=others.share, measured_at_s=time.time())
    write(calibration, path)
    return calibration


def _together_at_most(concurrent: int, tp: int) -> int:
    """How many ranks are measured at the same time: whole tensor groups, one at least."""
    return max(1, min(concurrent, MOST_TOGETHER) // tp) * tp


def _words(kernel: Kernel) -> str:
    words = f"{kernel.dtype} on {kernel.threads} thread{'s' if kernel.threads > 1 else ''}"
    return words if kernel.tp == 1 else f"a rank of {kernel.tp} in {words}"


def calibration_path(setting: Setting) -> Path:
    """Where the calibration of a setting is kept."""
    digest = hashlib.sha256(msgspec.json.encode(setting)).hexdigest()[:16]
    group = f"tp-{setting.tp}-" if setting.tp > 1 else ""
    name = f"{setting.dtype}-{group}{setting.threads}-threads-{setting.together}-ranks-{digest}.json"
    return Path(platformdirs.user_cache_dir("plait")) / "calibrations" / name


def _setting(spec: ModelSpec, kernel: Kernel, together: int, rows: int) -> Setting:
    layer_bytes = sum(map(prod, layer_tensors(spec).values())) * DTYPE_BYTES[kernel.weights] // kernel.tp
    return Setting(
        host=platform.node(),
        cpu=cpu_model(),
        cores=usable_cores(),
        torch=torch_version(),
        dtype=kernel.dtype,
        weights=kernel.weights,
        threads=kernel.threads,
        shape=_shape(spec),
        layers=max(3, min(spec.layers, MOST_BYTES // layer_bytes)),
        rows=next((known for known in (1, 8, 16, 32) if rows <= known), 32),
        together=together,
        tp=kernel.tp,
        shares=kernel.shares,
        sequence=kernel.sequence,
    )


def _shape(spec: ModelSpec) -> str:
    """A digest of all that decides how long a layer takes: everything but names and special tokens."""
    fields = {name: value for name, value in msgspec.to_builtins(spec).items() if name not in ("name", "bos", "eos")}
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:16]


def _measure(spec: ModelSpec, setting: Setting) -> Calibration:
    ranks = setting.together
    processes = _start(spec, setting)
    try:
        for process in processes:
            process.ready()
        alone = _alone(processes[0], setting)
        counts = range(setting.tp if setting.tp > 1 else 2, ranks + 1, setting.tp)
        together = tuple(_together(processes[:count], alone, setting) for count in counts)
    finally:
        for process in processes:
            process.stop()
    return replace(alone, together=together)


def _start(spec: ModelSpec, setting: Setting) -> list[MeasuringProcess]:
    """As many processes as are measured together; where there are tensor groups, with a mesh between them."""
    from plait.comm.shm import ShmMesh

    ranks, tp = setting.together, setting.tp
    share = max(1, min(setting.layers // max(2, ranks // tp), setting.layers - 2))
    job = Job(
        spec,
        setting.dtype,
        setting.threads,
        share,
        setting.layers,
        *_cache(setting),
        packed_for=setting.rows,
        tp=tp,
        shares=setting.shares,
        sequence=setting.sequence,
    )
    jobs = [job, *[msgspec.structs.replace(job, layers=0)] * (ranks - 1)]
    threads = ranks * setting.threads
    if tp == 1:
        return [MeasuringProcess(job, threads) for job in jobs]
    mesh = ShmMesh.create(ranks, 2, threads=threads)
    try:
        return [
            MeasuringProcess(
                msgspec.structs.replace(job, mesh={**mesh.description(rank)}),
                threads,
                mesh.descriptors(rank),
                rank % tp,
                tp,
            )
            for rank, job in enumerate(jobs)
        ]
    finally:
        mesh.close_parent()


def _cache(setting: Setting) -> tuple[int, int]:
    """Slots and positions of the measured caches."""
    return setting.rows, max(_CACHED[-1], _LENGTHS[-1] + _STARTS[-1]) + 64


def _alone(process: MeasuringProcess, setting: Setting) -> Calibration:
    decode = _Decoding(setting)
    decoded = process.alone(Alone(decode.works, 3, 0.6))
    chunks = [Work(1, length, start) for length in _LENGTHS for start in _STARTS]
    stores = [Work(1, length, 0, False) for length in _LENGTHS]
    prefilled = [process.alone(Alone((chunk,), *_PREFILL))[0] for chunk in chunks]
    stored = [process.alone(Alone((store,), *_PREFILL))[0] for store in stores]
    beside_s = decoded[0].action_s
    at = tuple(map(float, _LENGTHS))
    return Calibration(
        setting,
        decode_s=decode.grid([timed.layer_s for timed in decoded]),
        prefill_s=_grid([timed.layer_s for timed in prefilled]),
        action_s=Curve((1.0, *at), (beside_s, *(beside_s + timed.action_s for timed in stored))),
        head_s=decode.heads(decoded),
        last_s=_grid([timed.last_s for timed in prefilled]),
        store_s=Curve(at, tuple(timed.last_s for timed in stored)),
    )


def _grid(values: Sequence[float]) -> Grid:
    width = len(_STARTS)
    lines = tuple(tuple(values[i : i + width]) for i in range(0, len(values), width))
    return Grid(tuple(map(float, _LENGTHS)), tuple(map(float, _STARTS)), lines)


class _Decoding:
    """Which decoding is measured: all row counts at short caches, some of them at long ones too."""

    def __init__(self, setting: Setting) -> None:
        self.rows = tuple(rows for rows in _ROWS if rows <= setting.rows)
        self.some = tuple(sorted({1, min(4, setting.rows), setting.rows}))
        short = [Work(rows, 1, _CACHED[0] - 1) for rows in self.rows]
        long = [Work(rows, 1, cached - 1) for rows in self.some for cached in _CACHED[1:]]
        self.works = (*short, *long)

    def grid(self, layer_s: Sequence[float]) -> Grid:
        """One layer over rows × cached. What longer caches add is taken between the row counts that have it."""
        short, long = layer_s[: len(self.rows)], layer_s[len(self.rows) :]
        added = []
        for index in range(len(_CACHED) - 1):
            values = [
                long[i * (len(_CACHED) - 1) + index] - short[self.rows.index(rows)] for i, rows in enumerate(self.some)
            ]
            added.append(Curve(tuple(map(float, self.some)), tuple(max(0.0, value) for value in values)))
        lines = tuple(
            (base, *(base + curve.value(rows) for curve in added)) for rows, base in zip(self.rows, short, strict=True)
        )
        return Grid(tuple(map(float, self.rows)), tuple(map(float, _CACHED)), lines)

    def heads(self, timed: Sequence[Timed]) -> Curve:
        """The head alone: the last stage less its layer, over rows."""
        seconds = [max(0.0, one.last_s - one.layer_s) for one in timed[: len(self.rows)]]
        return Curve(tuple(map(float, self.rows)), tuple(seconds))


def _together(processes: Sequence[MeasuringProcess], alone: Calibration, setting: Setting) -> Together:
    """All `processes` compute the same at the same time: how much longer a layer takes than alone.

    The ranks of a tensor group go in step, as their exchanges make them: all ask for the memory at the same moment.
    """
    few = tuple(sorted({1, setting.rows}))
    works = [Work(rows, 1, _BESIDE_CACHED - 1) for rows in few] + [Work(1, _BESIDE_LENGTH, 0)]
    crowded = len(processes) * setting.threads > setting.cores
    slowdowns = []
    for work in works:
        begin_s = time.monotonic() + 0.02
        for process in processes:
            process.ask(Beside(work, begin_s, begin_s + _BESIDE_S))
        taken = [process.answer(list[float]) for process in processes]
        # who shares a core gets it in turns: only the mean tells how fast it goes on
        layer_s = statistics.fmean(statistics.fmean(times) if crowded else statistics.median(times) for times in taken)
        slowdowns.append(max(1.0, layer_s / _layer_alone(alone, work)))
    at = tuple(float(work.rows * work.length) for work in works)
    return Together(len(processes), Curve(at, tuple(slowdowns)))


def _layer_alone(alone: Calibration, work: Work) -> float:
    if work.length > 1:
        return alone.prefill_s.value(work.length, work.start)
    return alone.decode_s.value(work.rows, work.start + 1)
