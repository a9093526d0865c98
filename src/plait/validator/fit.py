"""Makes the profiles that published runs calibrate: `python -m plait.validator.fit`. Its output is the TOML files.

Every profile begins as the plain one with figures of its own, each with its source, and some of them fitted. Nothing is
set by hand afterwards; a test holds the files equal to what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from plait.costs.profiles import Profile, profile_named
from plait.validator import korthikanti, megatron, vtrain
from plait.validator.fitting import Errors, fitted
from plait.validator.table import Record, Validation, read_records

HOW = "python -m plait.validator.fit"
_DIGITS = 4


class Figure(NamedTuple):
    """A figure before the fit. `spread`: of its logarithm, by what is known of it; None is not fitted."""

    value: float | bool
    source: str
    spread: float | None = None


_A100 = {
    "tile_rows": Figure(
        256.0, "NVIDIA, 'Matrix Multiplication Background User's Guide' (2020): 256 × 128, A100's largest"
    ),
    "tile_columns": Figure(128.0, "as tile_rows"),
    "units": Figure(108.0, "NVIDIA A100 architecture, whitepaper (2020): 108 multiprocessors"),
    "hidden_reduction": Figure(0.0, "Korthikanti et al. (2022), section 6.3: 'we do not use any overlapping'"),
}

SELENE = _A100 | {
    "matrix_share": Figure(0.75, "large products of A100 reach 70 to 85 % of the data sheet", 0.15),
    "attention_share": Figure(0.35, "batched products with an inner dimension of 64 to 160", 0.3),
    "memory_share": Figure(0.88, "streaming kernels reach 80 to 95 %", 0.08),
    "within_share": Figure(0.8, "NCCL's bus bandwidth on 8 A100, about 235 of 300 GB/s (vtrain_nccl_allreduce)", 0.1),
    "split_exchange": Figure(1.05, "Korthikanti et al. (2022), section 6.2: slower than an all-reduce alone", 0.1),
    "hidden_backward": Figure(0.6, "the same: all-reduces run beside the linear layers' weight gradients", 0.3),
    "operation_s": Figure(2e-6, "start and end of a kernel, our assumption"),
    "launch_s": Figure(8e-6, "our assumption; large layers do not wait for it"),
    "parted": Figure(value=True, source="Narayanan et al. (2021), section 4.1: scatter and gather"),
    "accumulated_bytes": Figure(
        0.0, "weight gradients are added up in the product itself (gradient accumulation fusion)"
    ),
}

MEGATRON_2021 = {
    "hidden_backward": Figure(0.0, "software of 2021: exchanges of the backward are not hidden"),
    "accumulated_bytes": Figure(
        10.0, "software of 2021: a 16-bit gradient read, a float32 one read and written, apart from the product"
    ),
}
"""What differs from the software of 2022; the machine is the same."""

SAME_DEVICE = {"matrix_share": 0.02, "attention_share": 0.2, "memory_share": 0.02, "within_share": 0.08}
"""What another software on the same device begins with: profile a100's fitted figures, and how far they may move."""

DEEPSPEED = _A100 | {
    "inner_half": Figure(150.0, "as profile a100", 0.2),
    "started": Figure(0.5, "half a wave on average", 0.2),
    "operation_s": Figure(3e-6, "start and end of a kernel, and the small kernels beside those counted", 0.5),
    "launch_s": Figure(85e-6, "the host's time for one of the operations counted, each several kernels", 0.3),
    "rendezvous_s": Figure(1e-5, "hosts of one tensor group are not in step", 1.0),
    "sharpness": Figure(3.0, "the host is not always ahead of the device, nor always behind"),
    "exchange_s": Figure(1e-5, "start of an NCCL collective", 0.7),
    "micro_batch_s": Figure(7e-4, "the pipeline engine's own work for a micro-batch", 0.7),
    "parameter_s": Figure(1.2e-5, "the optimizer's kernels for one tensor", 0.7),
    "step_s": Figure(1e-3, "what a step does once", 1.0),
    "reduction_s": Figure(2e-3, "start of the gradients' reduction, in buckets", 1.0),
    "stepped_bytes": Figure(30.0, "Adam in float32 with 16-bit gradients and weights", 0.5),
    "hidden_backward": Figure(0.0, "that software hides no exchange"),
    "accumulated_bytes": Figure(2.0, "gradients are added up in 16 bits"),
    "reduced_bytes": Figure(2.0, "gradients are reduced in 16 bits"),
    "parted": Figure(
        value=True,
        source="DeepSpeed, runtime/pipe/engine.py: is_pipe_partitioned and is_grad_partitioned with a tensor group",
    ),
}

_ZERO_BUBBLE = {
    "1f1b": "1F1B", "gpipe": "1F1B", "layerwise": "1F1B", "interleaved": "1F1B-I", "zb-h1": "ZB-1p", "zb-h2": "ZB-2p",
    "zb-v": "ZB-1p", "dualpipe-v": "ZB-2p",
}  # fmt: skip
"""Schedules and those of the tables that they are taken as."""


def residues() -> dict[str, float]:
    """By schedule, how much longer measured steps took than perfect times per action say, median over 12 runs each.

    Qi et al., "Zero Bubble Pipeline Parallelism" (2023): samples a second of table 4 against m · (F + I + W) of table 9
    ÷ (1 - bubble of tables 5 and 8).
    """
    profiled = {(row["model"], row["num_microbatches"]): row for row in table("zero_bubble_table9_profiled")}
    bubbles = {
        (row["model"], row["num_microbatches"], row["schedule"]): float(row["bubble_rate"])
        for row in table("zero_bubble_tables5_8_bubble")
    }
    left: dict[str, list[float]] = {}
    for row in table("zero_bubble_table4_measured"):
        run = row["model"], row["num_microbatches"]
        bubble = bubbles.get((*run, row["schedule"]))
        if bubble is None:
            continue
        count = int(row["num_microbatches"])
        busy_s = count * sum(float(profiled[run][f"t{part}_ms"]) for part in "fbw") * 1e-3
        step_s = count * int(row["micro_batch"]) / (int(row["pp"]) * float(row["samples_per_gpu_s"]))
        left.setdefault(row["schedule"], []).append(step_s / (busy_s / (1 - bubble)) - 1)
    return {ours: median(left[theirs]) for ours, theirs in _ZERO_BUBBLE.items()}


def table(name: str) -> list[Record]:
    """One of the tables that come with Plait."""
    return read_records(Path(str(files("plait.validator") / "tables" / f"{name}.csv")))


def started(name: str, figures: Mapping[str, Figure]) -> Profile:
    """The plain profile with these figures."""
    return profile_named("plain").changed(name=name, **{key: figure.value for key, figure in figures.items()})


def spreads(figures: Mapping[str, Figure]) -> dict[str, float]:
    """Those that are fitted."""
    return {name: figure.spread for name, figure in figures.items() if figure.spread is not None}


def fit_selene() -> Profile:
    """Fitted on the ten layer times of Korthikanti's table 4 (to 1 %); the residue's size on two steps of table 5."""
    experiments = table("korthikanti2022_table4_layer")

    def errors(profile: Profile) -> Errors:
        rows = korthikanti.validated_layers("", experiments, profile).rows
        return np.array([row.error_pct for row in rows])

    profile = fitted(started("a100", SELENE).changed(residue={}), spreads(SELENE), errors)
    steps = korthikanti.validated("", table("korthikanti2022_tables3_5"), profile).rows
    short = mean(row.published / row.predicted - 1 for row in steps if row.calibrated)
    published = residues()
    scale = max(0.0, short) / published["interleaved"]
    return profile.changed(residue={name: scale * value for name, value in published.items()})


def fit_deepspeed(same: Profile) -> Profile:
    """Fitted on 20 rows of vTrain's table (to 5 %), from the same device's figures. 1F1B's residue is in the others."""
    records = vtrain.calibration_records(table("vtrain_ground_truth_single"))
    published = residues()
    more = {name: max(0.0, value - published["1f1b"]) for name, value in published.items()}
    profile = started("a100-megatron-deepspeed", DEEPSPEED).changed(
        residue=more, **{name: getattr(same, name) for name in SAME_DEVICE}
    )

    def errors(profile: Profile) -> Errors:
        return np.array([row.error_pct / 5 for row in vtrain.validated("", records, profile).rows])

    return fitted(profile, spreads(DEEPSPEED) | SAME_DEVICE, errors)


def make() -> dict[str, dict[str, Any]]:
    """The files' content, by the profile's name."""
    selene = rounded(fit_selene())
    deepspeed = rounded(fit_deepspeed(selene))
    older = selene.changed(name="a100-megatron-2021", **{key: figure.value for key, figure in MEGATRON_2021.items()})
    layers = (
        "Korthikanti et al. (2022) table 4 (ten layer times), the residue's size on both steps of the 175B model in "
        "table 5; how the residue differs by schedule is from zero bubble's tables 4, 5 and 9"
    )
    rows = (
        f"{vtrain.CALIBRATED_ROWS} rows of vTrain's single-host table, every twentieth by plait.validator.vtrain's rule"
    )
    steps = korthikanti.validated("", table("korthikanti2022_tables3_5"), selene)
    older_steps = megatron.validated("", table("megatron2021_table1"), older)
    small_steps = vtrain.validated("", table("vtrain_ground_truth_single"), deepspeed)
    wide, many = (2304, 25600), (8, 3072)  # tables 1 and 5, and zero bubble's stages
    return {
        selene.name: content(selene, SELENE, layers, steps, wide, many),
        older.name: content(older, SELENE | MEGATRON_2021, layers, older_steps, wide, many),
        deepspeed.name: content(deepspeed, DEEPSPEED | _as(selene), rows, small_steps, (1024, 2048), (2, 8)),
    }


def _as(same: Profile) -> dict[str, Figure]:
    """The same device's figures, as those that a fit began with."""
    return {name: Figure(getattr(same, name), "as profile a100", spread) for name, spread in SAME_DEVICE.items()}


def rounded(profile: Profile) -> Profile:
    """The figures as the files hold them."""
    known = profile_named("plain")
    values = {
        name: float(f"{getattr(profile, name):.{_DIGITS}g}")
        for name in known.sources
        if isinstance(getattr(profile, name), float)
    }
    return profile.changed(**values, residue={name: round(value, 4) for name, value in profile.residue.items()})


def content(
    profile: Profile,
    figures: Mapping[str, Figure],
    rows: str,
    judged: Validation,
    wide: tuple[int, int],
    many: tuple[int, int],
) -> dict[str, Any]:
    """One file: words first, then every figure with its source."""
    found: dict[str, Any] = {
        "name": profile.name,
        "calibrated_on": rows,
        "error_pct": round(judged.mean_abs_error_pct, 1),
        "hidden_range": list(wide),
        "devices_range": list(many),
    }
    for name, plain_source in profile_named("plain").sources.items():
        if name in found or name == "residue":
            continue
        found[name] = {"value": getattr(profile, name), "source": _source(figures.get(name), plain_source)}
    found["residue"] = {"value": dict(profile.residue), "source": _RESIDUE}
    return found


_RESIDUE = (
    "Qi et al., 'Zero Bubble' (2023), table 4 against their profiled times and bubbles, medians by schedule; scaled or "
    f"reduced for this profile by {HOW}"
)


def _source(figure: Figure | None, plain: str) -> str:
    if figure is None:
        return plain
    if figure.spread is None:
        return figure.source
    return f"fitted by {HOW}; began at {figure.value:g} ± {100 * figure.spread:.0f} %: {figure.source}"


def main() -> None:
    """Write the files."""
    folder = Path(str(files("plait.costs") / "profile_data"))
    for name, values in make().items():
        head = f"# Made by `{HOW}`. Do not edit: change the figures it begins with.\n\n"
        (folder / f"{name}.toml").write_text(head + tomli_w.dumps(values), encoding="utf-8")
        sys.stderr.write(f"{name}: ± {values['error_pct']} %\n")


if __name__ == "__main__":
    main()
