"""Plug-ins: modules outside the package that register parts, named in a recipe.

A plug-in is called by its module, or by an entry point of the group `fedvisage.plugins` that an installed package
brings. Nothing is imported that nobody has named. Modules are found where Python finds them (installed packages,
`PYTHONPATH`, a script's folder), then in the current folder and in folders that the caller gives.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path

from fedvisage.core.errors import FedVisageError, nearest

GROUP = "fedvisage.plugins"


def load_plugins(names: Iterable[str], folders: Sequence[Path] = ()) -> None:
    """Import plug-ins, so that what they register is known in this process."""
    for name in names:
        module = module_of(name)
        if module in sys.modules:
            continue
        _files(name, folders)
        try:
            importlib.import_module(module)
        except FedVisageError:
            raise
        except Exception as error:
            raise FedVisageError(f"plug-in '{name}' cannot be imported: {type(error).__name__}: {error}") from error


def module_of(name: str) -> str:
    """The module that a plug-in is in."""
    return {point.name: point.module for point in entry_points(group=GROUP)}.get(name, name)


def package_of(name: str) -> str:
    """The outermost package of that module, or the module itself."""
    return module_of(name).partition(".")[0]


def plugin_digest(name: str, folders: Sequence[Path] = ()) -> str:
    """SHA-256 of a plug-in's file; of a package, over the names and contents of all its Python files."""
    files = _files(name, folders)
    if len(files) == 1:
        return sha256(files[0].read_bytes()).hexdigest()
    found, home = sha256(), files[0].parent
    for path in sorted(files):
        found.update(f"{path.relative_to(home)}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def _files(name: str, folders: Sequence[Path]) -> list[Path]:
    """The Python files of a plug-in's outermost package, `__init__.py` first; none of them is imported for that."""
    package = package_of(name)
    if not all(part.isidentifier() for part in module_of(name).split(".")):
        known = sorted(point.name for point in entry_points(group=GROUP))
        raise FedVisageError(
            f"no plug-in '{name}': neither a module nor one that is installed ({nearest(name, known)})"
        )
    for folder in (None, Path.cwd(), *folders):
        if folder is not None and str(folder) not in sys.path:
            sys.path.append(str(folder))
            importlib.invalidate_caches()
        spec = importlib.util.find_spec(package) if package != "__main__" else None
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            origin = Path(spec.origin)
            others = origin.parent.rglob("*.py") if spec.submodule_search_locations else ()
            return [origin, *(path for path in others if path != origin)]
    raise FedVisageError(
        f"no plug-in '{name}': there is no module '{package}' among the installed packages, in PYTHONPATH or in "
        f"{Path.cwd()}"
    )
