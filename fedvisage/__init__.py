"""Train face-recognition models across parties whose face images never leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedvisage.core.lazy import lazily

if TYPE_CHECKING:
    from fedvisage import clustering, evaluation, faces, losses, methods
    from fedvisage.config import Recipe, load_recipe
    from fedvisage.core.errors import FedVisageError
    from fedvisage.models import load_model
    from fedvisage.pipeline import run
    from fedvisage.runfolder import RunResult
else:
    __getattr__ = lazily(
        __name__,
        {
            **{name: f"fedvisage.{name}" for name in ("clustering", "evaluation", "faces", "losses", "methods")},
            **dict.fromkeys(("Recipe", "load_recipe"), "fedvisage.config"),
            "FedVisageError": "fedvisage.core.errors",
            "load_model": "fedvisage.models",
            "RunResult": "fedvisage.runfolder",
            "run": "fedvisage.pipeline",
        },
    )

__version__ = "0.1.0"


def list_methods() -> list[str]:
    """Names of the registered methods."""
    from fedvisage.methods import METHODS

    return list(METHODS)


def list_backbones() -> list[str]:
    """Names of the registered backbones."""
    from fedvisage.models import BACKBONES

    return list(BACKBONES)


def list_losses() -> list[str]:
    """Names of the registered losses."""
    from fedvisage.losses import LOSSES

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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
