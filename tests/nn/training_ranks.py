"""Trains tiny models for two steps, in one process or over the ranks of a tensor group, and compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from plait.nn.training.options import StageOptions
from plait.spec.shards import make_shards, whole_shard
from tests.comm.ranks import ThreadRanks

from .models import Tiny, _ours, tiny
from .training_steps import BOUND, PLAIN, Learner, Step, assert_copies_equal, rank_steps, steps, worst_error


def fresh(case: str, tied: bool) -> Tiny:
    """A tiny model, with tied embeddings or without, whatever its family has."""
    made = tiny(case)
    if made.spec.tied == tied:
        return made
    embed, head = made.reference.get_input_embeddings(), made.reference.get_output_embeddings()
    head.weight = embed.weight if tied else nn.Parameter(torch.randn(embed.weight.shape) * 0.17)
    spec = replace(made.spec, tied=tied)
    return Tiny(spec, made.reference, _ours(spec, made.reference.state_dict()))


model = cache(fresh)


@cache
def alone(
    case: str,
    tied: bool,
    dtype: torch.dtype,
    batch: int,
    length: int,
    cut: tuple[int, ...] = (),
    options: StageOptions = PLAIN,
) -> list[Step]:
    """The steps in one process."""
    learner = Learner(model(case, tied), dtype, cut=cut, options=options)
    return [learner.step(one) for one in steps(batch, length)]


@cache
def bound(
    case: str,
    tied: bool,
    dtype: torch.dtype,
    batch: int = 2,
    length: int = 7,
    cut: tuple[int, ...] = (),
    options: StageOptions = PLAIN,
) -> float:
    """What the error must stay below: the project's bound, or where that is more, in float32, or there is none,
    four times what one process is off itself from float64. (Two steps of a tiny model under yarn amplify rounding to
    2e-5.)
    """
    if dtype == torch.float64:
        return BOUND[dtype]
    given = {"case": case, "tied": tied, "batch": batch, "length": length, "cut": cut, "options": as_one(options)}
    made = model(case, tied)
    exact = [
        Step(
            one.loss,
            *({name: tensor.float() for name, tensor in part.items()} for part in (one.gradients, one.weights)),
        )
        for one in alone(**given, dtype=torch.float64)
    ]
    whole = whole_shard(made.spec)
    rounding = [
        worst_error(made, one, theirs, whole, dtype)
        for one, theirs in zip(alone(**given, dtype=dtype), exact, strict=True)
    ]
    return max(BOUND.get(dtype, 0.0), 4 * max(rounding))


def as_one(options: StageOptions) -> StageOptions:
    """What must give the same numbers: one part, nothing recomputed."""
    return replace(options, parts=1, recompute="none")


def group_error(
    tp: int,
    case: str,
    tied: bool,
    dtype: torch.dtype = torch.float64,
    batch: int = 2,
    length: int = 7,
    sequence: bool = False,
    shares: Sequence[float] = (),
    cut: tuple[int, ...] = (),
    options: StageOptions = PLAIN,
    later: bool = False,
    split: bool = False,
) -> float:
    """The worst error of a tensor group of threads against one process; its copies must be equal to the bit."""
    given = {"case": case, "tied": tied, "dtype": dtype, "batch": batch, "length": length}
    made = model(case, tied)  # before the threads: making it seeds torch's one generator
    work = {"made": made, "dtype": dtype, "batch": batch, "length": length}
    how = {"sequence": sequence, "shares": shares, "cut": cut, "options": options, "later": later, "split": split}
    ranks = ThreadRanks().run(rank_steps, tp, **work, **how)
    shards = make_shards(made.spec, tp, shares)
    expected = alone(**given, cut=cut, options=as_one(options))
    for step in range(len(expected)):
        assert_copies_equal(made, [found[step] for found in ranks], shards)
    return max(
        worst_error(made, one, theirs, shards[rank], dtype)
        for rank, found in enumerate(ranks)
        for one, theirs in zip(found, expected, strict=True)
    )
