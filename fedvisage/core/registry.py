"""One registry for everything pluggable: a name, the thing, and a test suite that runs over all of them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from fedvisage.core.errors import FedVisageError, nearest

T = TypeVar("T")
Item = TypeVar("Item")


class Registry(Mapping[str, T], Generic[T]):
    """Names to things of one kind; asking for an unknown name says which known one is nearest."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}
        self._homes: dict[str, str] = {}

    def register(self, name: str, home: str = "") -> Callable[[Item], Item]:
        """Decorator that files the decorated thing under `name`; its `home` is the module that calls this."""
        home = home or str(sys._getframe(1).f_globals.get("__name__", ""))

        def add(item: Item) -> Item:
            if name in self._items and self._items[name] is not item and not self._is_done_again(name, home):
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._items[name], self._homes[name] = cast(T, item), home
            return item

        return add

    def _is_done_again(self, name: str, home: str) -> bool:
        """Whether a cell of a notebook is run once more."""
        return self._homes[name] == home == "__main__"

    def home(self, name: str) -> str:
        """The module that registered a name; empty for an unknown one."""
        return self._homes.get(name, "")

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name]
        except KeyError:
            raise FedVisageError(f"unknown {self.kind} '{name}': {nearest(name, self._items)}") from None

    def options(self, name: str) -> dict[str, object]:
        """The options of a registered function, which are its keyword-only parameters, with their defaults."""
        function: Any = self[name]
        parameters = inspect.signature(function).parameters.values()
        return {option.name: option.default for option in parameters if option.kind is option.KEYWORD_ONLY}

    def with_options(self, name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
        """A registered function with `options` fixed; one that it does not have is refused."""
        function: Any = self[name]
        known = self.options(name)
        for option in options:
            if option not in known:
                raise FedVisageError(f"{self.kind} '{name}' has no option '{option}': {nearest(option, known)}")
        return functools.partial(function, **options)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))

    def __len__(self) -> int:
        return len(self._items)
