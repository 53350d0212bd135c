"""What the parts of a run compute besides training steps, for plans: a table by part, beside the planner.

A part is looked up by its class, then by the classes that it is made of. A method that is none of the table's is
planned as what it is a subclass of, in the end as FedAvg, and the plan says so: what it does besides is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedvisage.core.method import METHODS, Component, Method
from fedvisage.core.phase import SOURCE, Phase
from fedvisage.losses._regularisers import BUFFER
from fedvisage.losses.spreadout import tile
from fedvisage.methods.central import Central
from fedvisage.methods.centre import FitCentres
from fedvisage.methods.fedavg import FedAvg
from fedvisage.methods.fedfr import FedFR
from fedvisage.methods.feduda import FedUDA
from fedvisage.methods.fv import FederatedValidation
from fedvisage.methods.separation import Cosine, Separation, Spreadout

Forward = Callable[[Any, Phase, str, float, float], float]
"""Images that a party of `own` ones runs forward in an exchange, where there are `public` ones and it has a role."""


def _fedavg(method: FedAvg, phase: Phase, role: str, own: float, public: float) -> float:
    """Whoever joins embeds its images once where class embeddings start at their means."""
    return own if phase.name == "join" and method.starts_at_mean else 0.0


def _fedfr(method: FedFR, phase: Phase, role: str, own: float, public: float) -> float:
    """Hard negatives look at everybody; the contrastive term runs two more networks on every training image."""
    if not phase.trains:
        return _fedavg(method, phase, role, own, public)
    looked_at = own + public if method.public == "hard" else 0.0
    return looked_at + (2 * own * (method.training.local_epochs or 1) if method.contrastive else 0.0)


def _feduda(method: FedUDA, phase: Phase, role: str, own: float, public: float) -> float:
    """A target joins with nothing; to be labelled it embeds each image and its mirror, then once more for means."""
    if role == SOURCE:
        return _fedavg(method, phase, role, own, public)
    return own * (2 + method.starts_at_mean) if phase.name in ("label", "relabel") else 0.0


def _fv(weighting: FederatedValidation, phase: Phase, role: str, own: float, public: float) -> float:
    """A candidate embeds each image of the pairs once: two a pair, or all there are."""
    return min(2 * weighting.pairs, own) if phase.name in ("validate", "survey") else 0.0


def _centres(part: FitCentres, phase: Phase, role: str, own: float, public: float) -> float:
    """Each image and its mirror image."""
    return 2 * own


FORWARD: Mapping[type[Component], Forward] = {
    FedAvg: _fedavg,
    FedFR: _fedfr,
    FedUDA: _feduda,
    FederatedValidation: _fv,
    FitCentres: _centres,
}


def forward_images(part: Component, phase: Phase, role: str, own: float, public: float) -> float:
    """Images that a party of `own` ones runs forward in an exchange of a part's phase, besides training."""
    known = next((FORWARD[kind] for kind in type(part).__mro__ if kind in FORWARD), None)
    return known(part, phase, role, own, public) if known else 0.0


def trained_images(method: Method, own: float, public: float) -> float:
    """Images that a party of `own` images trains on in an epoch, where there are `public` ones.

    How many hard negatives FedFR would choose among them is not known.
    """
    return own + public if isinstance(method, Central | FedFR) and method.public == "all" else own


def server_cost(part: Component, classes: int, size: int) -> dict[str, float]:
    """`operations` and bytes of `memory` of a server step over this many class embeddings; empty without one."""
    if not isinstance(part, Separation):
        return {}
    if isinstance(part, Cosine):  # sums over all classes
        return {"operations": 4.0 * classes * size, "memory": 16.0 * classes * size}
    # two matrix products over all pairs of classes; embeddings, gradient, the step's result and a block or a square
    block = tile(classes, size) ** 2 if isinstance(part, Spreadout) else BUFFER
    return {"operations": 4.0 * classes**2 * size, "memory": 4.0 * (4 * classes * size + block)}


def planned_as(method: Method) -> str:
    """The name of the method that one from elsewhere is planned as; empty for those of the package."""
    own = {kind: name for name, kind in METHODS.items() if kind.__module__.startswith(f"{__package__}.")}
    if type(method) in own:
        return ""
    return next((own[kind] for kind in type(method).__mro__ if kind in own), "fedavg")
