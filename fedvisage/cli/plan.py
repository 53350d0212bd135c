"""`fedvisage plan`: what a run will cost, from the recipe alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedvisage.cli.output import Json, show_json, show_table, size
from fedvisage.cli.run import Changes, RecipeArgument
from fedvisage.config import load_recipe, parse_change
from fedvisage.core.errors import FedVisageError
from fedvisage.planning import make_plan


def plan_command(
    recipe: RecipeArgument,
    changes: Changes = None,
    people: Annotated[int | None, typer.Option(min=1, help="Of a face set that the plan does not know.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Of a face set that the plan does not know.")] = None,
    as_json: Json = False,
) -> None:
    """Say how many bytes cross, how much memory is needed, and how much arithmetic a run is."""
    if (people is None) != (images is None):
        raise FedVisageError("--people and --images go together")
    plan = make_plan(load_recipe(recipe, dict(map(parse_change, changes or []))), people, images)
    if as_json:
        show_json(plan)
        return
    model, totals = plan["backbone"], plan["totals"]
    print(f"{plan['recipe']}: {plan['method']} over {plan['parties']} parties, {plan['rounds']} rounds")
    print(f"backbone {model['name']}: {model['parameters']:,} parameters, {model['travelling']:,} travel\n")
    rows = [[row["phase"], row["direction"], row["group"], row["how"], size(row["bytes"])] for row in plan["wire"]]
    show_table(["phase", "direction", "group", "how", "bytes per party"], rows)
    crossing = f"{size(totals['down'])} down, {size(totals['up'])} up"
    print(f"\nper round and party: {crossing}; whole run {size(totals['run'])}")
    step = plan["server_step"]
    if step:
        print(f"server step: {step['classes']:,} class embeddings, {step['operations'] / 1e12:,.3g} teraflop per round")
    memory = plan["memory"]
    print(f"memory: server {size(memory['server'])}, party {size(memory['party'])} (tensors; activations estimated)")
    show_compute(plan["compute"])


def show_compute(work: Mapping[str, Any]) -> None:
    """The arithmetic of a run and the GPU hours it may take."""
    if not work:
        print("arithmetic: give --people and --images of the face set to have it estimated")
        return
    data = work["data"]
    print(
        f"arithmetic: {work['trained_images']:,} images trained on, {work['forward_images']:,} more run forward, "
        f"{work['operations_per_image'] / 1e9:.2f} gigaflop each way, {work['operations'] / 1e15:,.3g} petaflop in all"
    )
    print(f"  of a set of {data['people']:,} people, {data['images']:,} images ({data['source']})")
    hours = ", ".join(f"{name} {value:,.2g}" for name, value in work["gpu_hours"].items())
    print(f"  GPU hours at {work['utilisation']:.0%} of the data sheet's fp32 peak (an estimate): {hours}")
