"""Recipes in TOML: read, changed from the command line, validated, written out in full.

Unknown keys are errors that name the nearest known key.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedvisage.config.recipe import Recipe
from fedvisage.core.errors import FedVisageError, nearest


def shipped_recipes() -> tuple[str, ...]:
    """Names of the recipes that come with the package."""
    folder = resources.files("fedvisage") / "recipes"
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml")))


def load_recipe(source: str | Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a shipped name or a TOML file, with `changes` such as {"federation.rounds": 5} on top."""
    text, where = _read(str(source))
    table = _parse(text, f"recipe {where}")
    table.setdefault("method", dict(Recipe().method))
    for path, value in deepcopy(dict(changes or {})).items():  # one change may reach into the table that another gives
        _put(table, path, value)
    return validated(Recipe, table, f"recipe {where}")


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return _parse(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise FedVisageError(f"cannot read {path}: {error}") from error


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedVisageError(f"{where} is not valid TOML: {error}") from error


def parse_change(text: str) -> tuple[str, Any]:
    """`a.b=c` from the command line; c is TOML where it parses as such, else a string."""
    path, found, value = text.partition("=")
    if not found or not path:
        raise FedVisageError(f"--set {text}: write it as section.key=value")
    try:
        return path.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), value.strip()


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], table: Mapping[str, Any], where: str) -> Model:
    """`model` made from `table`; the first thing wrong becomes one clear line."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first = _told(error.errors())
        where_in = [part for part in first["loc"] if part not in ("number", "people", "several", "[key]", *_EITHER)]
        path = ".".join(str(part) for part in where_in)
        if first["type"] == "extra_forbidden":
            known = _known(model, where_in[:-1])
            raise FedVisageError(f"{where}: unknown key '{path}': {nearest(str(first['loc'][-1]), known)}") from None
        raise FedVisageError(f"{where}: {path and path + ': '}{first['msg'].removeprefix('Value error, ')}") from None


_EITHER = ("str", "bool", "tuple[str, ...]")
"""What pydantic adds to the place of an error where a value may be one thing or another."""


def _told(errors: Sequence[Any]) -> Any:
    """The first error; where a value may be one thing or another, that of the one which came closest."""
    first, place = errors[0], errors[0]["loc"][:-1]
    if not first["loc"] or first["loc"][-1] not in _EITHER:
        return first
    same = [error for error in errors if error["loc"][: len(place)] == place]
    return max(same, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))


def to_toml(recipe: BaseModel) -> str:
    """The recipe with every value spelt out, as TOML."""
    lines: list[str] = []
    _write(recipe.model_dump(mode="json", exclude_none=True), "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _read(source: str) -> tuple[str, str]:
    if source in shipped_recipes():
        return (resources.files("fedvisage") / "recipes" / f"{source}.toml").read_text("utf-8"), f"'{source}'"
    path = Path(source)
    try:
        found = path.is_file()
    except OSError:
        found = False
    if not found:
        hint = nearest(source, shipped_recipes())
        raise FedVisageError(f"no recipe '{source}': neither a file nor a shipped recipe ({hint})")
    try:
        return path.read_text("utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise FedVisageError(f"cannot read recipe {path}: {error}") from error


def _put(table: dict[str, Any], path: str, value: Any) -> None:
    *parents, key = path.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise FedVisageError(f"cannot set '{path}': '{parent}' is not a section")
    table[key] = value


def _known(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """The keys of the table at `path`; the names in a table of tables are free."""
    parts = iter([part for part in path if not isinstance(part, int)])
    for part in parts:
        annotation = model.model_fields[str(part)].annotation
        inner = _model_in(annotation)
        if inner is None:
            return []
        if isinstance(origin := get_origin(annotation), type) and issubclass(origin, Mapping):
            next(parts, None)
        model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _write(table: Mapping[str, Any], path: str, lines: list[str]) -> None:
    lines += [f"{_key(key)} = {_literal(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            inner = f"{path}.{_key(key)}" if path else _key(key)
            lines += ["", f"[{inner}]"]
            _write(value, inner, lines)


def _key(name: str) -> str:
    """A key as TOML has it: bare where that is possible."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_literal(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
