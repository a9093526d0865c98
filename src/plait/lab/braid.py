"""The braid: data, pipeline and tensor axes on two hosts with a slow link between them, in every order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from plait.comm.emulated_mesh import emulated_threads
from plait.costs.protocol import FREE, Exchange, FixedCosts, LinkCost
from plait.executor.virtual import TransferTime, VirtualMessages, VirtualWorld
from plait.lab.experiment import Chart, Check, Outcome, Say, Series, Size, Table
from plait.lab.talking import Talks, VirtualExchanges, bytes_by_axis, one_thread_each
from plait.lab.waiting import Pause, on_threads, on_virtual_clock, undisturbed
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import Round
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import action_exchanges, exchanged_bytes, reduced_bytes
from plait.prober.emulated import OwnLink, own_link, require_possible
from plait.prober.host import usable_cores
from plait.schedules.step import make_training_round, sequences
from plait.simulator.simulate import simulate
from plait.spec.cluster import Wire
from plait.spec.emulation import Emulation
from plait.spec.model import ModelSpec, Rope
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics
from plait.units import format_seconds

AXES = ("dp", "pp", "tp")
WIRE = Wire(300e-6, 16e6 / 8)
"""16 Mb/s and 300 µs: what is slow beside stages that take 30 ms for little."""

HIDDEN, VOCAB = 48, 64
SPEC = ModelSpec("braid", "llama", 2, HIDDEN, 4, 4, 12, 2 * HIDDEN, VOCAB, 512, 1e-5, Rope(10000.0, 12), (None,) * 2)
BOUND, FACTOR_BOUND = 0.25, 0.3
"""Of a step: threads of one process take turns at eight ranks' messages, which is not predicted, and with a wire that
many share the simulator does not know whose message goes first."""


class Sizes(NamedTuple):
    """What is measured: tokens of a micro-batch, how many of them, seconds of a forward (a backward has two).

    `most_steps`: of real threads; 0 is one on the virtual clock.
    """

    tokens: int
    micro_batches: int
    forward_s: float
    most_steps: int


SIZES: Mapping[Size, Sizes] = {"full": Sizes(352, 4, 30e-3, 5), "short": Sizes(352, 4, 30e-3, 0)}


class Case(NamedTuple):
    """A plan in one order of the axes, the first of which is the one that crosses the hosts."""

    order: tuple[str, ...]
    plan: TrainingPlan
    sizes: Sizes

    @property
    def crossing(self) -> str:
        """The axis between the hosts."""
        return self.order[0]

    @property
    def words(self) -> str:
        """``tp × pp × dp``, the outermost first."""
        return " × ".join(self.order)

    def round(self) -> Round:
        """One step."""
        setup = self.plan.setup
        return make_training_round(0, self.plan.layout, setup, sequences(setup.micro_batches, 1, self.plan.sequence))

    def emulation(self) -> Emulation:
        """Ranks 0 to 3 on one host, 4 to 7 on the other."""
        return Emulation((0,) * 4 + (1,) * 4, {(0, 1): WIRE, (1, 0): WIRE})


def make_case(order: tuple[str, ...], sizes: Sizes) -> Case:
    """Two of each axis; a rank's number counts the axes as an odometer does, the last one fastest."""
    weight = {axis: 2 ** (len(order) - 1 - at) for at, axis in enumerate(order)}
    stages = tuple(
        Stage(
            (stage, stage + 1),
            tuple(weight["dp"] * d + weight["pp"] * stage + weight["tp"] * t for d in range(2) for t in range(2)),
        )
        for stage in range(2)
    )
    layout = Layout(dict.fromkeys(order, 2), stages, 2)
    setup = TrainingSetup(Split(dp=2, pp=2, tp=2), "1f1b", 1, sizes.micro_batches)
    plan = TrainingPlan(SPEC.name, layout, setup, 2 * sizes.micro_batches, sizes.tokens)
    return Case(order, plan, sizes)


# --- predicted ----------------------------------------------------------------------------------------------


def computing(case: Case) -> FixedCosts:
    """What the stages wait instead of computing."""
    each = {Kind.FORWARD: case.sizes.forward_s, Kind.BACKWARD: 2 * case.sizes.forward_s}
    return FixedCosts(kind_seconds={(stage, kind): taken for stage in range(2) for kind, taken in each.items()})


def costs(case: Case) -> FixedCosts:
    """With what is talked over the wire; inside a host talking costs nothing.

    The wire is shared by those that use it at the same time: the exchanges of both replicas, the messages of all four
    ranks of a host, the reductions of both ranks of a tensor group.
    """
    plan, waits = case.plan, computing(case).kind_seconds
    layout, work = plan.layout, case.round().work[0]
    seconds, exchanges = dict(waits), {}
    for (stage, kind), computed_s in waits.items():
        inside = list(action_exchanges(SPEC, layout, plan.setup, stage, kind, work))
        sent = exchanged_bytes(iter(inside), 2)
        talked_s = over_wire_s(2 * max(sent), len(inside)) if case.crossing == "tp" else 0.0
        seconds[stage, kind] = computed_s + talked_s
        exchanges[stage, kind] = Exchange.of(talked_s, sent)
    for stage in range(2):
        sent_bytes = reduced_bytes(SPEC, layout, plan.setup, stage) // 4
        seconds[stage, Kind.REDUCE_GRADIENTS] = over_wire_s(2 * sent_bytes, 1) if case.crossing == "dp" else 0.0
        exchanges[stage, Kind.REDUCE_GRADIENTS] = Exchange(0.0, sent_bytes)
    shared = LinkCost(WIRE.latency_s, WIRE.bandwidth / 4, buffered=True)
    return FixedCosts(any_link=shared if case.crossing == "pp" else FREE, kind_seconds=seconds, exchanges=exchanges)


def over_wire_s(sent_bytes: int, turns: int) -> float:
    """Seconds of so many bytes over the wire one way, in so many turns one after the other."""
    return turns * WIRE.latency_s + sent_bytes / WIRE.bandwidth


def wire_s(case: Case, sent_bytes: Mapping[str, int]) -> float:
    """A lower bound: what crosses the wire one way, half of it, at its full bandwidth."""
    return sent_bytes[case.crossing] / 2 / WIRE.bandwidth


# --- measured -----------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """A case's step in seconds, and the bytes of all ranks by axis, predicted and measured. `wire_s`: a lower bound."""

    case: Case
    predicted_s: float
    measured_s: float
    wire_s: float
    predicted_bytes: dict[str, int]
    measured_bytes: dict[str, int]


def steps(case: Case) -> Steps:
    """Predict and measure."""
    layout, one = case.plan.layout, case.round()
    predicted = simulate(layout, [one], costs(case), SPEC)
    if case.sizes.most_steps:
        with one_thread_each():
            measured = undisturbed(lambda: _run(case, one), case.sizes.most_steps)
    else:
        measured = _virtual(case, one)
    by_rule = bytes_by_axis(predicted)
    needed_s = wire_s(case, by_rule)
    predicted_s = max(_step_s(predicted, layout), needed_s)
    return Steps(case, predicted_s, _step_s(measured, layout), needed_s, by_rule, bytes_by_axis(measured))


def _own() -> OwnLink:
    """Of ranks that are threads of one process: none spins, as where there are more ranks than cores."""
    return own_link(usable_cores() + 1)


def _run(case: Case, one: Round) -> Timeline:
    endpoints = emulated_threads(case.emulation(), case.plan.layout.link_capacity, own=_own().hand_over)
    waits = computing(case)
    return on_threads(
        case.plan.layout,
        one,
        endpoints,
        lambda rank: Talks(waits, case.plan, SPEC, rank, endpoint=endpoints[rank]),
    )


def _virtual(case: Case, one: Round) -> Timeline:
    """With the link between the hosts as one wire each way, which carries one message after the other."""
    waits = computing(case)

    def worker(messages: VirtualMessages, rank: int, pause: Pause) -> Talks:
        exchanges = VirtualExchanges(messages, rank)
        return Talks(waits, case.plan, SPEC, rank, endpoint=exchanges, pause=pause, clock=messages.clock)

    def wires(world: VirtualWorld) -> TransferTime:
        hosts, free_s = case.emulation().hosts, {0: 0.0, 1: 0.0}

        def times(source: int, to: int, size_bytes: int) -> tuple[float, float]:
            if hosts[source] == hosts[to]:
                return 0.0, 0.0
            free_s[hosts[source]] = max(world.now, free_s[hosts[source]]) + size_bytes / WIRE.bandwidth
            return 0.0, free_s[hosts[source]] - world.now + WIRE.latency_s

        return times

    return on_virtual_clock(case.plan.layout, one, worker, wires)


def _step_s(timeline: Timeline, layout: Layout) -> float:
    return training_metrics(timeline, layout)["step_s"]


def measure(size: Size, say: Say) -> Outcome:
    """Measure every order."""
    require_possible(WIRE, _own())
    found = []
    for order in permutations(AXES):
        case = make_case(order, SIZES[size])
        say(f"{case.words}: {case.crossing} between the hosts")
        found.append(steps(case))
    return Outcome("braid", checks(found), sentence(found), table(found), (chart(found),), NOTES)


# --- said ---------------------------------------------------------------------------------------------------


def checks(found: Sequence[Steps]) -> tuple[Check, ...]:
    """Every step, all bytes, and how much the order decides."""
    steps_s = (
        Check(f"step with {one.case.words}, the first between hosts", one.predicted_s, one.measured_s, "s", BOUND)
        for one in found
    )
    sent = (
        Check(f"{axis} sends with {one.case.words}", one.predicted_bytes[axis], one.measured_bytes[axis], "bytes", 0.0)
        for one in found
        for axis in AXES
    )
    predicted, measured = (factor([getattr(one, at) for one in found]) for at in ("predicted_s", "measured_s"))
    slowest = Check("the slowest order, in steps of the fastest", predicted, measured, "steps", FACTOR_BOUND)
    return (*steps_s, slowest, *sent)


def factor(times_s: Sequence[float]) -> float:
    """The longest, in the shortest."""
    return max(times_s) / min(times_s)


def crossed(found: Sequence[Steps]) -> dict[str, Steps]:
    """For each axis between the hosts the faster of its two orders, the fastest axis first."""
    best: dict[str, Steps] = {}
    for one in sorted(found, key=lambda one: one.measured_s):
        best.setdefault(one.case.crossing, one)
    return best


def sentence(found: Sequence[Steps]) -> str:
    """What was measured, in words."""
    best = crossed(found)
    said = ", ".join(
        f"{axis} {format_seconds(one.measured_s)} ({one.measured_bytes[axis] / 1e6:.1f} MB sent)"
        for axis, one in best.items()
    )
    first, *_, last = best
    return (
        f"A step took, by the axis between the hosts: {said}. The worst of the six orders takes "
        f"{factor([one.measured_s for one in found]):.1f} times as long as the best: {last} belongs inside a host, and "
        f"here {first} crosses the slow link at the least cost."
    )


def table(found: Sequence[Steps]) -> Table:
    """A row an order."""
    headings = ("outermost first", "between hosts", "sent between hosts", "lower bound", "predicted", "measured")
    rows = tuple(
        (
            one.case.words,
            one.case.crossing,
            f"{one.measured_bytes[one.case.crossing] / 1e6:.2f} MB",
            *map(format_seconds, (max(one.wire_s, computing_s(one.case)), one.predicted_s, one.measured_s)),
        )
        for one in found
    )
    return Table(headings, rows)


def computing_s(case: Case) -> float:
    """A lower bound: a pipeline of two positions on free links."""
    return (case.sizes.micro_batches + 1) * 3 * case.sizes.forward_s


def chart(found: Sequence[Steps]) -> Chart:
    """A pair of bars an order."""
    words = tuple(f"{one.case.words} ({one.case.crossing} crosses)" for one in found)
    return Chart(
        "A step of 2 × 2 × 2 ranks on two hosts, by order of the axes",
        "outermost axis first",
        "seconds a step",
        (
            Series("predicted", words, tuple(one.predicted_s for one in found), measured=False),
            Series("measured", words, tuple(one.measured_s for one in found)),
        ),
        bars=True,
    )


NOTES = (
    "The stages wait 30 ms for a forward and 60 ms for a backward of a micro-batch; messages, exchanges and reductions "
    "are real, have the sizes of a small model's, and go over shared memory inside a host.",
    "The link of 16 Mb/s and 300 µs each way is emulated, and shared by the four ranks of a host. Beside such waits it "
    "is as slow as a network between hosts is beside accelerators. With other sizes dp and pp may change places.",
)
