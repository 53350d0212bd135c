"""One registry for everything pluggable: a name, the thing, and a test suite that runs over all of them."""

from __future__ import annotations

import functools
import inspect
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

    def register(self, name: str) -> Callable[[Item], Item]:
        """Decorator that files the decorated thing under `name`."""

        def add(item: Item) -> Item:
            if name in self._items and self._items[name] is not item:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._items[name] = cast(T, item)
            return item

        return add

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
