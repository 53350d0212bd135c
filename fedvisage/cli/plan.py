"""`fedvisage plan`: what a run will cost, from the recipe alone."""

from __future__ import annotations

from fedvisage.cli.output import Json, show_json, show_table, size
from fedvisage.cli.run import Changes, RecipeArgument
from fedvisage.config import load_recipe, parse_change
from fedvisage.planning import make_plan


def plan_command(recipe: RecipeArgument, changes: Changes = None, as_json: Json = False) -> None:
    """Say how many bytes cross per round and party, how much memory is needed, and how large the network is."""
    plan = make_plan(load_recipe(recipe, dict(map(parse_change, changes or []))))
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
