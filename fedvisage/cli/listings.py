"""`fedvisage methods` and `fedvisage models`: what there is, from the registries."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedvisage.cli.output import Json, show_json, show_table
from fedvisage.core.method import METHODS
from fedvisage.models import BACKBONES
from fedvisage.privacy import declared_groups


def methods_command(as_json: Json = False) -> None:
    """List the methods, with what leaves a party under each."""
    table: dict[str, dict[str, Any]] = {}
    for name, kind in METHODS.items():
        method = kind()
        options = {
            key: value for key, value in method.model_dump(mode="json").items() if key not in ("training", "rounds")
        }
        phases = declared_groups([method])
        table[name] = {"summary": kind.summary, "pools": kind.pools, "options": options, "phases": phases}
    if as_json:
        show_json(table)
        return
    rows = []
    for name, entry in table.items():
        leaves = {group: how for phase in entry["phases"].values() for group, how in phase["up"].items()}
        text = "all images" if entry["pools"] else ", ".join(f"{group} ({how})" for group, how in leaves.items())
        rows.append([name, entry["summary"], text])
    show_table(["method", "what it does", "what leaves a party"], rows)


def models_command(as_json: Json = False) -> None:
    """List the backbones, with their sizes and licences."""
    entries = {name: asdict(architecture.metadata) for name, architecture in BACKBONES.items()}
    if as_json:
        show_json(entries)
        return
    columns = ["backbone", "parameters", "image", "embedding", "what it is"]
    rows = [
        [name, f"{e['parameters']:,}", f"{e['image_size']}", f"{e['embedding_size']}", e["description"]]
        for name, e in entries.items()
    ]
    show_table(columns, rows)
