"""`plait generate` where torchrun (or SLURM) has started the ranks, on one host or several.

every rank    join ──> greet rank 0
rank 0        plan, measure links and clocks ──> sessions ──> leave
others        answer, run their part of each session, leave; they say nothing but what they failed with
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from plait.comm.cluster import join
from plait.comm.launcher import Environment
from plait.costs.protocol import Costs
from plait.costs.serving import ServingModel
from plait.errors import PeerLost, RunError
from plait.generation.generate import Result, generate
from plait.generation.planning import Options, measured_costs
from plait.generation.torchrun_costs import HostsCosts, on_this_host
from plait.generation.torchrun_follower import FollowerRank, greeting
from plait.generation.torchrun_hosts import chosen_words, crossing_words, filled_in
from plait.generation.torchrun_lead import Mesh, TorchrunRanks
from plait.generation.torchrun_protocol import CAPACITY
from plait.generation.watch import Watch
from plait.plans.file import load_plan_file
from plait.plans.plan import Plan
from plait.prober.host import usable_cores
from plait.ranks.grace import GRACE_S, grace
from plait.spec.model import ModelSpec

Prompts = Callable[[], list[str]]
"""Reads the prompts: only rank 0 has to have them."""


class _Terminated(BaseException):
    """SIGTERM has come while nothing else could say why."""


def follow(here: Environment, options: Options) -> bool:
    """A rank but rank 0: serve until it may leave; whether all ended well.

    Errors: what this rank failed with. What rank 0 says of a lost rank is not said twice on its host.
    """
    with grace():
        try:
            with join(here, CAPACITY, _threads(here, options)) as endpoint:
                return FollowerRank(endpoint, options).serve(here)
        except PeerLost as error:
            if error.rank == 0 or here.host != 0:
                raise
            return False


def lead(
    here: Environment, prompts: Prompts, options: Options, *, watch: Watch, run: Path | None, check: bool
) -> Result:
    """Rank 0: see `generate`. Errors: as there; PeerLost where a rank is lost."""
    meshes: list[Mesh] = []
    with grace(lambda: _raise_unless_serving(meshes)), join(here, CAPACITY, _threads(here, options)) as endpoint:
        mesh = Mesh(endpoint, greeting(here))
        meshes.append(mesh)
        try:
            result = _lead(mesh, prompts(), options, watch, run, check)
        except _Terminated:
            mesh.await_loss(GRACE_S / 2)
            raise RunError("stopped by SIGTERM") from None
        except Exception:
            with suppress(RunError):  # a session that broke has left the mesh already
                if not mesh.serving:
                    mesh.leave(failed=True)
            raise
        mesh.leave(failed=False)
    return result


def _lead(mesh: Mesh, prompts: list[str], options: Options, watch: Watch, run: Path | None, check: bool) -> Result:
    hosts, asked = mesh.hosts, options
    options = filled_in(options, hosts)
    if options != asked:
        watch.say(chosen_words(options, hosts))
    return generate(
        prompts,
        options,
        costs_for=_Pricing(mesh, options, watch),
        launch=partial(TorchrunRanks, mesh=mesh),
        watch=watch,
        run=run,
        check=check,
        machine=hosts,
    )


class _Pricing:
    """`CostsFor` on a mesh; says once what a prediction is made of."""

    def __init__(self, mesh: Mesh, options: Options, watch: Watch) -> None:
        self._mesh, self._watch, self._said = mesh, watch, False
        self._file = None if options.plan is None else load_plan_file(options.plan)

    def __call__(self, plan: Plan, spec: ModelSpec) -> Costs:
        hosts, file = self._mesh.hosts, self._file
        if file is not None and file.cluster is not None:
            self._say("predicted from the figures of the plan file's cluster", plan)
            first = plan.layout.stages[0]
            return ServingModel(spec, file.cluster, first.dtype, first.weights).costs()
        local = replace(plan, layout=on_this_host(plan.layout, hosts))
        inside = measured_costs(local, spec, self._watch.say)
        if len(hosts.nodes) == 1:
            return inside
        words = "predicted from layers as measured on this host, and links between hosts as measured now"
        if crossing_words(plan.layout, hosts) is not None:
            words += "; what a tensor group exchanges over a link counts as if it were on one host: expect far more"
        self._say(words, plan)
        return HostsCosts(inside, hosts, self._mesh.link)

    def _say(self, words: str, plan: Plan) -> None:
        if self._said:
            return
        self._said = True
        self._watch.say(words)
        crossing = crossing_words(plan.layout, self._mesh.hosts)
        if crossing is not None:
            self._watch.say(crossing)


def _threads(here: Environment, options: Options) -> int:
    """Threads that the ranks of this host are likely to compute with."""
    return here.local_size * (options.threads or max(1, usable_cores() // here.local_size))


def _raise_unless_serving(meshes: list[Mesh]) -> None:
    if meshes and not meshes[0].serving:
        raise _Terminated
