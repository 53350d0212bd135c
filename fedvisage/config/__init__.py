"""A run as data: TOML in, frozen validated models, resolved TOML out."""

from fedvisage.config.files import load_recipe, parse_change, read_toml, shipped_recipes, to_toml, validated
from fedvisage.config.recipe import (
    Backbone,
    Evaluation,
    Faces,
    Federation,
    Group,
    Guard,
    Names,
    Part,
    Partition,
    People,
    Positive,
    Pretrain,
    Recipe,
    Section,
    Training,
)

__all__ = [
    "Backbone",
    "Evaluation",
    "Faces",
    "Federation",
    "Group",
    "Guard",
    "Names",
    "Part",
    "Partition",
    "People",
    "Positive",
    "Pretrain",
    "Recipe",
    "Section",
    "Training",
    "load_recipe",
    "parse_change",
    "read_toml",
    "shipped_recipes",
    "to_toml",
    "validated",
]
