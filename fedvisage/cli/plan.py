"""`fedvisage plan`: what a run will cost, from the recipe alone; and how the plan of a study is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedvisage.cli.output import Json, show_json, show_table, size
from fedvisage.cli.run import Changes, Plugins, RecipeArgument, chosen_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.costs import GPUS
from fedvisage.planning import IMAGES, NOTHING, PARCELS, make_plan
from fedvisage.studies import Study

GPU = "V100"
"""Whose hours a study's plan shows."""


def plan_command(
    recipe: RecipeArgument,
    changes: Changes = None,
    people: Annotated[int | None, typer.Option(min=1, help="Of a face set that the plan does not know.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Of a face set that the plan does not know.")] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Say how many bytes cross, how much memory is needed, and how much arithmetic a run is."""
    if (people is None) != (images is None):
        raise FedVisageError("--people and --images go together")
    plan = make_plan(chosen_recipe(recipe, changes, plugins), people, images)
    if as_json:
        show_json(plan)
        return
    model, totals = plan["backbone"], plan["totals"]
    print(f"{plan['recipe']}: {plan['method']} over {plan['parties']} parties, {plan['rounds']} rounds")
    print(f"backbone {model['name']}: {model['parameters']:,} parameters, {model['travelling']:,} travel\n")
    if "planned_as" in plan:
        print(f"planned as {plan['planned_as']}: what {plan['method']} computes besides is not known\n")
    rows = [[row["phase"], row["direction"], row["group"], row["how"], size(row["bytes"])] for row in plan["wire"]]
    show_table(["phase", "direction", "group", "how", "bytes per party"], rows)
    crossing = f"{size(totals['down'])} down, {size(totals['up'])} up"
    whole = {IMAGES: "every image, once: training is central", NOTHING: "nothing: there is one party"}
    said = whole.get(plan["moves"], f"per round and party: {crossing}; whole run {size(totals['run'])}")
    print(f"\n{said}")
    step = plan["server_step"]
    if step:
        operations = readable(step["operations"] / 1e12)
        print(f"server step: {step['classes']:,} class embeddings, {operations} teraflop per round")
    memory = plan["memory"]
    print(f"memory: server {size(memory['server'])}, party {size(memory['party'])} (tensors; activations estimated)")
    show_compute(plan["compute"])


def show_compute(work: Mapping[str, Any]) -> None:
    """The arithmetic of a run and the GPU hours it may take."""
    if not work:
        print("arithmetic: give --people and --images of the face set to have it estimated")
        return
    data, operations = work["data"], readable(work["operations"] / 1e15)
    print(
        f"arithmetic: {work['trained_images']:,} images trained on, {work['forward_images']:,} more run forward, "
        f"{work['operations_per_image'] / 1e9:.2f} gigaflop each way, {operations} petaflop in all"
    )
    print(f"  of a set of {data['people']:,} people, {data['images']:,} images ({data['source']})")
    hours = ", ".join(f"{name} ({GPUS[name]}) {readable(value)}" for name, value in work["gpu_hours"].items())
    print(f"  GPU hours at {work['utilisation']:.0%} of the fp32 peak (teraflop/s, data sheets), an estimate: {hours}")


def show_study(study: Study, plan: Mapping[str, Any]) -> None:
    """What each row costs, whose run it shares, and what all runs cost together."""
    labels = {row.name: row.label for row in study.at_scale(plan["scale"]).rows}
    rows = []
    for row, label in labels.items():
        own = plan["rows"][row]
        shared = f"shares the run of {labels[own['run_of']]}" if own["run_of"] else ""
        crossing = [size(own["totals"][way]) for way in ("down", "up")] if own["moves"] == PARCELS else ["-", "-"]
        each = [*crossing, *map(size, own["memory"].values())]
        counted = ["-"] * 3 if shared else _counted(own["counted"], own["moves"])
        rows.append([label, f"{own['rounds']:,}", *each, *counted, shared])
    before, total, empty = plan["pretraining"], plan["total"], [""] * 5
    if before["starts"]:
        starts = "once" if before["starts"] == 1 else f"{before['starts']} starts"
        rows.append([f"pre-training, {starts}", *empty, "-", "-", _hours(before), ""])
    rows.append(["total", *empty, *_counted(total), ""])
    heads = ["rounds", "down, party and round", "up", "server memory", "party memory", "runs", "bytes moved"]
    rates = f" and one of {len(plan['tries'])} learning rates" if plan["tries"] else ""
    print(f"{study.title} ({study.source}), {plan['scale']} scale, one seed{rates}")
    show_table(["", *heads, f"{GPU} hours", ""], rows)
    peak, share = plan["throughput"]["peak_teraflops"][GPU], plan["throughput"]["share"]
    print(
        f"\nhours: an estimate for a {GPU} at {share * peak:.1f} teraflop/s, {share:.0%} of the {peak} of its data "
        "sheet (fp32); scale them to what yours reaches; `--json` has other GPUs and counts"
    )


def _counted(some: Mapping[str, Any], moves: str = PARCELS) -> list[str]:
    moved = {PARCELS: size(some["bytes"]), IMAGES: "every image", NOTHING: "nothing"}
    return [str(some["runs"]), moved[moves], _hours(some)]


def _hours(some: Mapping[str, Any]) -> str:
    return readable(some["gpu_hours"][GPU]) if some["gpu_hours"] else "-"


def readable(value: float) -> str:
    """A number that is known roughly: three digits and never an exponent."""
    if 0 < value < 0.001:
        return "<0.001"
    rounded = float(f"{value:.3g}")
    digits = 0 if rounded == 0 or rounded >= 100 else 1 if rounded >= 10 else 2 if rounded >= 1 else 3
    return f"{rounded:,.{digits}f}"
