"""Train face-recognition models across parties whose face images never leave them."""

from __future__ import annotations

from fedvisage import clustering, evaluation, faces, losses, methods
from fedvisage.config import Recipe, load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS
from fedvisage.losses import LOSSES
from fedvisage.models import BACKBONES, load_model
from fedvisage.pipeline import RunResult, run

__version__ = "0.1.0"


def list_methods() -> list[str]:
    """Names of the registered methods."""
    return list(METHODS)


def list_backbones() -> list[str]:
    """Names of the registered backbones."""
    return list(BACKBONES)


def list_losses() -> list[str]:
    """Names of the registered losses."""
    return list(LOSSES)


__all__ = [
    "FedVisageError",
    "Recipe",
    "RunResult",
    "__version__",
    "clustering",
    "evaluation",
    "faces",
    "list_backbones",
    "list_losses",
    "list_methods",
    "load_model",
    "load_recipe",
    "losses",
    "methods",
    "run",
]
