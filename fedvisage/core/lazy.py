"""Names of a package that are imported when somebody first asks for them.

NVFlare imports the relay by its name, and with it every package around it. What passes bytes on should not have to load
PyTorch for that: 140 MB in a process that never sees a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `homes` gives the module of each name, or the name's own where it is a module."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module = import_module(homes[name])
        value = module if homes[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return find
