"""One registry for everything pluggable."""

from __future__ import annotations

import pytest

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.core.registry import Registry


def losses() -> Registry[int]:
    registry: Registry[int] = Registry("loss")
    registry.register("cosface")(1)
    registry.register("arcface")(2)
    return registry


def test_things_are_found_by_name_and_listed_in_order() -> None:
    registry = losses()
    assert (registry["cosface"], list(registry), len(registry)) == (1, ["arcface", "cosface"], 2)
    assert "cosface" in registry
    assert "softmax" not in registry


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(FedVisageError, match=r"unknown loss 'cosfase': did you mean 'cosface'\?"):
        losses()["cosfase"]


def test_a_name_near_to_none_is_answered_with_all() -> None:
    with pytest.raises(FedVisageError, match="unknown loss 'zzz': known: arcface, cosface"):
        losses()["zzz"]


def test_a_name_cannot_be_taken_twice() -> None:
    registry = losses()
    with pytest.raises(ValueError, match="loss 'cosface' is registered twice"):
        registry.register("cosface")(3)
    assert registry["cosface"] == 1


def test_registering_the_same_thing_again_is_no_mistake() -> None:
    registry = losses()
    assert registry.register("cosface")(registry["cosface"]) == 1


def test_registering_gives_the_thing_back_so_it_works_as_a_decorator() -> None:
    registry: Registry[type] = Registry("kind")

    @registry.register("here")
    class Here:
        pass

    assert registry["here"] is Here


def test_the_hint_is_the_closest_of_several() -> None:
    assert nearest("round", ["rounds", "quorum", "workers"]) == "did you mean 'rounds'?"
