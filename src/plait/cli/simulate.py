"""``plait simulate``: the predicted timeline of a plan file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from plait.cli.output import verb, write_json
from plait.errors import PlanError

if TYPE_CHECKING:
    from plait.plans.training import TrainingPlan
    from plait.spec.cluster import Cluster
    from plait.timeline.record import RunRecord


@verb
def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens of each prompt; the plan's job's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of each answer; the plan's job's.")] = None,
    users: Annotated[int | None, typer.Option(min=1, help="Requests; the plan's job's.")] = None,
    rounds: Annotated[str | None, typer.Option(help="Rounds to draw, as in 0:8.")] = None,
    actions: Annotated[bool, typer.Option("--actions", help="Print every round's actions.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a page.")] = False,
) -> None:
    """Predict a plan's timeline, without running it."""
    from plait.plans.file import load_plan_file
    from plait.plans.training import TrainingPlan

    file = load_plan_file(plan)
    if isinstance(file.plan, TrainingPlan):
        given = {"--prompt": prompt, "--max-tokens": max_tokens, "--users": users, "--rounds": rounds}
        _refuse([name for name, value in given.items() if value is not None])
        _step(file.plan, file.cluster, actions=actions, as_json=json)
        return
    from plait.generation.forecast import forecast

    _print(forecast(file, prompt, max_tokens, users), rounds, actions=actions, as_json=json)


def _refuse(given: list[str]) -> None:
    if given:
        raise PlanError(
            f"the plan is of training, and {', '.join(given)} {'is' if len(given) == 1 else 'are'} of generation"
        )


def _print(record: RunRecord, rounds: str | None, *, actions: bool, as_json: bool) -> None:
    from plait.reports.terminal import actions_text, parse_rounds, report, report_json

    if as_json:
        values = {**report_json(record), "job": record.result["job"], "note": record.result["note"]}
        write_json({**values, "actions": actions_text(record.make_rounds()).splitlines()} if actions else values)
        return
    if actions:
        sys.stdout.write(actions_text(record.make_rounds()) + "\n")
    sys.stdout.write(_asked(record) + "\n\n")
    report(record, Console(file=sys.stdout, highlight=False), None if rounds is None else parse_rounds(rounds))
    sys.stdout.write(f"\n{_DIFFERENCE}\nAbout the figures: {record.result['note']}.\n")


_DIFFERENCE = "This is a whole run, prompts included; plait plan tells of steady decoding."


def _asked(record: RunRecord) -> str:
    """What was simulated, in a sentence or two."""
    job, replicas = record.result["job"], record.result["predicted"]["replicas"]
    answers = f"{job['users']} requests of" if job["users"] > 1 else "one request of"
    said = f"{answers} {job['prompt_tokens']} tokens, answers of {job['max_tokens']}"
    if replicas == 1:
        return f"Simulated: {said}."
    return f"Simulated: {said}, by {replicas} replicas. One of them is shown; tokens a second and bytes are of all."


def _step(plan: TrainingPlan, cluster: Cluster | None, *, actions: bool, as_json: bool) -> None:
    from plait.reports.marks import glyphs_for
    from plait.reports.step import step_json, step_page
    from plait.reports.terminal import actions_text
    from plait.simulator.step import forecast_step
    from plait.weights.model import model_spec

    forecast = forecast_step(plan, model_spec(plan.model), cluster)
    if as_json:
        values = step_json(forecast)
        write_json({**values, "actions": actions_text([forecast.round]).splitlines()} if actions else values)
        return
    if actions:
        sys.stdout.write(actions_text([forecast.round]) + "\n")
    console = Console(file=sys.stdout, highlight=False)
    page = step_page(forecast, console.width, glyphs_for(console.encoding))
    console.print(page, soft_wrap=True, highlight=False)
