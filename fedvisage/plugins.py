"""Which parts of a run come from outside the package, and what follows from that for other processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedvisage import methods as _methods
from fedvisage.config import Recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS, REGULARISERS, WEIGHTINGS
from fedvisage.core.plugins import package_of
from fedvisage.core.registry import Registry
from fedvisage.core.rule import RULES
from fedvisage.losses import LOSSES
from fedvisage.models import BACKBONES
from fedvisage.training import OPTIMISERS, SCHEDULES

OWN = _methods.__name__.partition(".")[0]
MAIN = "__main__"


def parts_used(recipe: Recipe) -> Iterator[tuple[Registry[Any], str]]:
    """Every registered part that a recipe names, with its registry."""
    for name in (str(recipe.method["name"]), *recipe.compare):
        yield METHODS, name
        yield WEIGHTINGS, METHODS[name].default_weighting
        yield REGULARISERS, METHODS[name].default_regulariser
    yield WEIGHTINGS, recipe.weighting.get("name", "")
    yield REGULARISERS, recipe.regulariser.get("name", "")
    yield RULES, recipe.aggregation["name"]
    yield BACKBONES, recipe.backbone.name
    for work in (recipe.training, recipe.pretrain):
        yield LOSSES, work.loss
        yield SCHEDULES, work.schedule
        yield SCHEDULES, str(work.schedule_options.get("then", ""))
        yield OPTIMISERS, work.optimiser


def with_plugins(recipe: Recipe) -> Recipe:
    """The recipe with every module named that registered one of its parts: other processes import what it names."""
    named = {package_of(name) for name in recipe.plugins}
    homes = {registry.home(name) for registry, name in parts_used(recipe) if name in registry}
    others = sorted(home for home in homes if home.partition(".")[0] not in named | {OWN, MAIN, "__mp_main__"})
    return recipe.model_copy(update={"plugins": (*recipe.plugins, *others)}) if others else recipe


def of_main(recipe: Recipe) -> list[str]:
    """The recipe's parts that are defined in the script, notebook or shell itself."""
    used = {(registry.kind, name) for registry, name in parts_used(recipe) if registry.home(name) == MAIN}
    return [f"{kind} '{name}'" for kind, name in sorted(used)]


def check_main(recipe: Recipe, elsewhere: str, scripts: bool = False) -> None:
    """Refuse parts that other processes cannot import. A script's worker processes run it again to find them."""
    found = of_main(recipe)
    script = getattr(sys.modules[MAIN], "__file__", None)
    if found and not (scripts and script and Path(script).is_file()):
        raise FedVisageError(
            f"{', '.join(found)} is defined in __main__, which {elsewhere} cannot import: put it into a module of its "
            'own, say my_parts.py, and name that in the recipe (plugins = ["my_parts"])'
        )
