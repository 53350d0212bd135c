"""From a template to a page: one file that loads nothing, written atomically."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = "fedvisage.report"


def write_page(path: Path, template: str, contents: Mapping[str, Any]) -> Path:
    """Fill a template of this package and write it as one self-contained page, light and dark."""
    text = _environment().get_template(template).render(contents, style=_style())
    try:
        write_atomically(path, [text.encode("utf-8", "replace")])
    except OSError as error:
        raise FedVisageError(f"cannot write {path}: {error.strerror or error}") from None
    return path


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _text(name: str) -> str:
    return (resources.files(HERE) / name).read_text("utf-8")


@cache
def _style() -> Any:
    from markupsafe import Markup

    return Markup(_text("style.css"))
