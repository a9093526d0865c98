"""Everything that is read, chosen and refused before a rank trains: the same on every rank of a launcher."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from plait.errors import SpecError
from plait.plans.file import dump_any_plan
from plait.plans.hosts import on_hosts, on_this_host, several_hosts
from plait.plans.training import TrainingPlan
from plait.ranks.same_model import Fingerprint
from plait.spec.cluster import Cluster
from plait.trainer.checks import check_mesh, check_settings
from plait.trainer.data import Ids, Sequences, digest, read_ids
from plait.trainer.frozen import frozen_names
from plait.trainer.protocol import Work
from plait.trainer.settings import Settings
from plait.trainer.train_memory import require_memory
from plait.trainer.train_model import Beginning, open_beginning
from plait.trainer.train_options import TrainOptions
from plait.trainer.train_plan import Started, make_plan, make_settings, read_given
from plait.trainer.train_watch import TrainWatch


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can begin. `cluster`: the plan file's, where it has one. `sequences`: how many the text holds.

    `planned_hosts`: each rank's, where links between a plan's hosts are emulated here; the plan is on this host then.
    """

    beginning: Beginning
    plan: TrainingPlan
    cluster: Cluster | None
    settings: Settings
    ids: Ids
    sequences: int
    work: Work
    planned_hosts: Mapping[int, str] = field(default_factory=dict)

    @property
    def planned(self) -> TrainingPlan:
        """The plan on the hosts that its file names."""
        return replace(self.plan, layout=on_hosts(self.plan.layout, self.planned_hosts))

    def digests(self) -> dict[str, str]:
        """What must be the same on all ranks of a launcher, by what it is called in an error."""
        # threads may differ from host to host, and the weights lie elsewhere on each
        stages = tuple(replace(stage, threads=1, host="") for stage in self.plan.layout.stages)
        plan = replace(self.plan, layout=replace(self.plan.layout, stages=stages))
        told = msgspec.structs.replace(self.work, plan=dump_any_plan(plan), index=None)
        index = self.beginning.index
        return {
            "text": digest(self.ids),
            "plan": _of(msgspec.json.encode((told.plan, told.spec))),
            "settings": _of(msgspec.json.encode((told.settings, told.steps, told.timelines, told.buckets))),
            "weights": _of(b"" if index is None else msgspec.json.encode(Fingerprint.of(index), order="sorted")),
        }


def _of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def prepare(
    model: str | None,
    data: Sequence[Path],
    options: TrainOptions,
    watch: TrainWatch,
    started: Started,
) -> Prepared:
    """Open the model, make the plan, read the text. Errors: UsageError for all that cannot work."""
    given = read_given(options)
    beginning = open_beginning(_model_name(model, given and given.plan, options), watch.say)
    plan, cluster = make_plan(options, beginning.spec, given, started)
    plan = replace(plan, model=beginning.name)
    planned_hosts = {} if options.emulate is None else several_hosts(plan.layout, cluster)
    if planned_hosts:
        plan = replace(plan, layout=on_this_host(plan.layout))
    settings = make_settings(options, fresh=beginning.index is None)
    check_settings(settings)
    check_mesh(plan, beginning.spec, plan.layout.ranks)
    frozen_names(beginning.spec, settings.frozen)
    require_memory(plan, beginning.spec, settings, started.held(plan.layout.ranks))
    kept = options.kept_steps
    ids = read_ids(data, beginning.tokenizer)
    sequences = Sequences(ids, plan.sequence, plan.batch, settings.seed, _named(data)).count
    index = None if beginning.index is None else beginning.index.to_bytes()
    work = Work(dump_any_plan(plan), beginning.spec, settings, index, options.steps, kept, options.buckets)
    return Prepared(beginning, plan, cluster, settings, ids, sequences, work, planned_hosts)


def _model_name(model: str | None, given: TrainingPlan | None, options: TrainOptions) -> str:
    if given is None:
        if model is None:
            raise SpecError(
                "no model was given: type --model and one line, as in --model llama:layers=4,hidden=256,heads=4, "
                "a preset (plait plan --list), a config.json, a model's directory, or demo"
            )
        return model
    if model is not None and model != given.model:
        raise SpecError(
            f"--model {model} was given, but plan file {options.plan} is of {given.model}: "
            "leave --model out, or plan again with it"
        )
    return given.model


def _named(data: Sequence[Path]) -> str:
    return "the text" if len(data) != 1 else str(data[0])
