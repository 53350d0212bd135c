"""`fedvisage party`: a party's operator looks before joining, and runs the party."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedvisage.build import build_parts, resolve
from fedvisage.cli.output import Json, show_json, show_table
from fedvisage.cli.run import Changes, RecipeArgument
from fedvisage.config import Recipe, load_recipe, parse_change, to_toml
from fedvisage.deploy import open_party_folder, require_nvflare
from fedvisage.privacy import Policy, privacy_table
from fedvisage.privacy.policy import INDIVIDUAL
from fedvisage.privacy.table import seen_singly

app = typer.Typer(no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The party's folder.")]


@app.command("check")
def check_command(folder: Folder, recipe: RecipeArgument, changes: Changes = None, as_json: Json = False) -> None:
    """Say what would leave this party under a recipe, and whether its policy allows it; exit code 1 where not."""
    party = open_party_folder(folder)
    chosen = load_recipe(recipe, dict(map(parse_change, changes or [])))
    refused = party.policy.plugin_objections(chosen.plugins, party.digest_of)
    if not refused:
        party.load_plugins(chosen.plugins)
        chosen = resolve(chosen)
    names = (str(chosen.method["name"]), *chosen.compare)
    found, rows = (refused, []) if refused else _asked(chosen, party.policy)
    if as_json:
        show_json({"party": party.settings.name, "leaves": rows, "objections": found, "takes_part": not found})
    else:
        table = [[r["phase"], r["group"], r["how"], "yes" if r["allowed"] else "NO", r["what"]] for r in rows]
        for line, row in zip(table, rows, strict=True):
            line[1:1] = [", ".join(row["methods"])] if chosen.compare else []
        title = f"What would leave {party.settings.name} under {chosen.name} ({', '.join(names)})"
        columns = ["phase", *(["method"] if chosen.compare else []), "group", "how", "allowed", "what it is"]
        show_table(columns, table, title=title)
        print("\n".join(["", "refuses:", *(f"- {line}" for line in found)]) if found else "\nit would take part")
    if found:
        raise typer.Exit(1)


def _asked(recipe: Recipe, policy: Policy) -> tuple[list[str], list[dict[str, Any]]]:
    """What speaks against a recipe's method and those it is compared with, and everything that leaves under them."""
    objections: dict[str, list[str]] = {}
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for compared in ("", *recipe.compare):
        parts, name = build_parts(recipe, compared), compared or str(recipe.method["name"])
        found = policy.objections(name, parts.components, recipe.federation.rounds)
        singly = seen_singly(parts.components)
        if parts.method.pools:
            found.append(f"{name} pools images, and images never leave a party")
        for line in found:
            objections.setdefault(line, []).append(name)
        for row in privacy_table(parts.components):
            if row["direction"] == "up":
                how = policy.groups.get(row["group"])
                allowed = how is not None and (how == INDIVIDUAL or row["group"] not in singly[row["phase"]])
                new = {**row, "allowed": allowed, "methods": []}
                rows.setdefault(tuple(row.values()), new)["methods"].append(name)
    lines = []
    for line, by in objections.items():
        whose = "" if len(by) > len(recipe.compare) or by[0] in line else f"{', '.join(by)}: "
        lines.append(whose + line)
    return lines, list(rows.values())


@app.command("plugin")
def plugin_command(
    folder: Folder, name: Annotated[str, typer.Argument(help="As recipes call it.")], as_json: Json = False
) -> None:
    """Say what to write into party.toml to let a plug-in run here, as it is installed now."""
    digest = open_party_folder(folder).digest_of(name)
    if as_json:
        show_json({"plugin": name, "sha256": digest})
    else:
        print(to_toml(Policy(plugins={name: digest})).partition("[plugins]\n")[2].strip())


@app.command("start")
def start_command(folder: Folder) -> None:
    """Run the party in the foreground; `start.sh` does this."""
    require_nvflare()
    from fedvisage.deploy.processes import become, party_command

    become(*party_command(folder))
