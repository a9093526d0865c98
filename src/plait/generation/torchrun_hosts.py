"""The hosts of a mesh that a launcher has started: which ranks they have, what a plan may use of them, their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from plait.errors import PlanError
from plait.generation.planning import Options
from plait.generation.torchrun_protocol import CAPACITY, Greeting
from plait.plans.layout import Layout, Stage
from plait.plans.plan import LOCALHOST, Plan, check_runnable


class Hosts:
    """Where each rank is, by the ranks' own words. A `Machine` for plans of as many ranks.

    Hosts are called what they call themselves; by numbers where two of them have the same name.
    """

    def __init__(self, greetings: Sequence[Greeting]) -> None:
        self._ranks = greetings
        self.nodes = sorted({one.node for one in greetings})
        named = {one.node: one.name for one in greetings}
        same = len(set(named.values())) < len(named)
        self._names = {node: f"host {self.nodes.index(node)}" if same else name for node, name in named.items()}

    @property
    def size(self) -> int:
        """Ranks in all."""
        return len(self._ranks)

    def name(self, rank: int) -> str:
        """The host of a rank."""
        return self._names[self._ranks[rank].node]

    @property
    def names(self) -> Mapping[int, str]:
        """The host of each rank; empty where there is only one."""
        return {rank: self.name(rank) for rank in range(self.size)} if len(self.nodes) > 1 else {}

    @property
    def first_ranks(self) -> Sequence[int]:
        """The first rank of every host but that of rank 0."""
        firsts = {one.node: one.rank for one in reversed(self._ranks)}
        return sorted(rank for rank in firsts.values() if rank)

    def together(self, ranks: Sequence[int]) -> bool:
        """All these ranks are on one host."""
        return len({self._ranks[rank].node for rank in ranks}) == 1

    @property
    def per_host(self) -> int | None:
        """Ranks of each host; None where they differ."""
        counts = {sum(one.node == node for one in self._ranks) for node in self.nodes}
        return counts.pop() if len(counts) == 1 else None

    @property
    def threads(self) -> int:
        """Threads that may compute at the same time on a host: the smallest host's cores."""
        return min(one.cores for one in self._ranks)

    @property
    def threads_each(self) -> int:
        """Threads of each rank: its host's cores, divided by the ranks there; of the host that has fewest."""
        return max(1, min(one.cores // one.local_size for one in self._ranks))

    def placed(self, plan: Plan) -> Plan:
        """See `Machine`. Errors: PlanError where the plan has other ranks, or cannot be run yet."""
        layout = plan.layout
        check_runnable(replace(plan, layout=replace(layout, stages=_on(LOCALHOST, layout.stages))))
        if layout.ranks != self.size:
            raise self._wrong_size(layout)
        stages = tuple(replace(stage, host=self.name(stage.ranks[0])) for stage in layout.stages)
        return replace(plan, layout=replace(layout, stages=stages, link_capacity=CAPACITY))

    def _wrong_size(self, layout: Layout) -> PlanError:
        needed, tp = layout.ranks, layout.tp
        split = f"pp = {len(layout.stages)}" + (f" \N{MULTIPLICATION SIGN} tp = {tp}" if tp > 1 else "")
        hosts = len(self.nodes)
        each = (
            ""
            if needed % hosts
            else f", or start {needed} with --nproc-per-node {needed // hosts}"
            + (f" on each of the {hosts} hosts" if hosts > 1 else "")
        )
        return PlanError(
            f"the plan has {needed} rank{'s' if needed > 1 else ''} ({split}), but {self.size} were started: "
            f"give --pp and --tp whose product is {self.size}, or a plan of as many{each}"
        )

    def free_bytes(self, layout: Layout) -> Mapping[str, int]:
        """See `Machine`. A tensor group over several hosts has what is free on all of them."""
        free: dict[str, int] = {}
        for stage in layout.stages:
            nodes = {self._ranks[rank].node for rank in stage.ranks}
            held = sum(min(one.free_bytes for one in self._ranks if one.node == node) for node in nodes)
            free[stage.host] = max(held, free.get(stage.host, 0))
        return free


def _on(host: str, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    return tuple(replace(stage, host=host) for stage in stages)


def filled_in(options: Options, hosts: Hosts) -> Options:
    """The options with a split over all ranks, where nothing or not all is said of it: stages between hosts.

    Tensor groups inside them. A plan file decides for itself.
    """
    if options.plan is not None:
        return options
    stages = options.stages if options.layers is None else len(options.layers)
    tp = options.tp if options.shares is None else len(options.shares)
    size, threads = hosts.size, options.threads or hosts.threads_each
    if stages is None and tp is None:
        tp = hosts.per_host or 1
    if tp is None and stages and not size % stages:
        tp = size // stages
    if stages is None and tp and not size % tp:
        stages = size // tp
    return replace(options, stages=stages if options.layers is None else options.stages, tp=tp, threads=threads)


def chosen_words(options: Options, hosts: Hosts) -> str:
    """How the ranks are used, where not all of it was asked for."""
    count = len(hosts.nodes)
    each = "" if hosts.per_host is None else f" of {_plural(hosts.per_host, 'rank')}"
    stages = options.stages if options.layers is None else len(options.layers)
    split = f"--pp {stages or 1} --tp {options.tp or 1}"
    return f"{_plural(count, 'host')}{each}: {split}, {_plural(options.threads or 1, 'thread')} each"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def crossing_words(layout: Layout, hosts: Hosts) -> str | None:
    """What to warn of where a tensor group crosses hosts."""
    crossing = [number for number, stage in enumerate(layout.stages) if not hosts.together(stage.ranks)]
    if not crossing:
        return None
    which = f"stage{'s' if len(crossing) > 1 else ''} {', '.join(map(str, crossing))}"
    return (
        f"warning: the tensor group of {which} crosses hosts: its ranks exchange twice a layer, for every token, over "
        "the link between the hosts, which is far slower than memory. Faster: tensor groups inside hosts, "
        f"--pp {len(hosts.nodes)} --tp {hosts.size // len(hosts.nodes)}"
    )
