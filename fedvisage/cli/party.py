"""`fedvisage party`: a party's operator looks before joining, and runs the party."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.build import build_parts, resolve
from fedvisage.cli.output import Json, show_json, show_table
from fedvisage.cli.run import Changes, RecipeArgument
from fedvisage.config import load_recipe, parse_change
from fedvisage.deploy import open_party_folder, require_nvflare
from fedvisage.privacy import privacy_table

app = typer.Typer(no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The party's folder.")]


@app.command("check")
def check_command(folder: Folder, recipe: RecipeArgument, changes: Changes = None, as_json: Json = False) -> None:
    """Say what would leave this party under a recipe, and whether its policy allows it; exit code 1 where not."""
    party = open_party_folder(folder)
    chosen = resolve(load_recipe(recipe, dict(map(parse_change, changes or []))))
    parts = build_parts(chosen)
    method = str(chosen.method["name"])
    found = party.policy.objections(method, parts.components, chosen.federation.rounds)
    if parts.method.pools:
        found.append(f"{method} pools images, and images never leave a party")
    allowed = set(party.policy.groups)
    rows = [row for row in privacy_table(parts.components) if row["direction"] == "up"]
    if as_json:
        leaves = [row | {"allowed": row["group"] in allowed} for row in rows]
        show_json({"party": party.settings.name, "leaves": leaves, "objections": found, "takes_part": not found})
    else:
        table = [[r["phase"], r["group"], r["how"], "yes" if r["group"] in allowed else "NO", r["what"]] for r in rows]
        title = f"What would leave {party.settings.name} under {chosen.name} ({method})"
        show_table(["phase", "group", "how", "allowed", "what it is"], table, title=title)
        print("\n".join(["", "refuses:", *(f"- {line}" for line in found)]) if found else "\nit would take part")
    if found:
        raise typer.Exit(1)


@app.command("start")
def start_command(folder: Folder) -> None:
    """Run the party in the foreground; `start.sh` does this."""
    require_nvflare()
    from fedvisage.deploy.processes import become, party_command

    become(*party_command(folder))
