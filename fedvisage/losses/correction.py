"""FedGC's gradient correction and FedCos's cosine regulariser (Niu and Deng, AAAI 2022): what pushes parties apart.

FedGC's regulariser (its eq. 5, summed) over the class embeddings W of all parties, primes marking what is detached:

    Σ_k Σ_{i of k} -log( e^{W'_ki·W'_ki} / (e^{W'_ki·W'_ki} + Σ_{z≠k} Σ_{j of z} e^{W_zj·W'_ki}) )

Anchors and self term take no gradient: that of W_zj is Σ p_(ki→zj) W_ki over the anchors of other parties.

The paper leaves its CosFace and ArcFace forms open; here both use `scale` times cosines, with the self term
e^{s(1 - m)} or e^{s cos m}, and the gradient goes through the normalisation of the live side. Without a margin the
weights, at most e^{s(cos - 1)}, would leave nothing to push with.

Identities held by several parties: the anchor is the mean of their copies, one per identity, and its negatives are all
class embeddings of the parties that do not hold it.

`gradient_correction_gradient` and `cosine_regulariser_gradient` give the same by closed form for large C.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.losses._cosines import unit, without_autocast
from fedvisage.losses._regularisers import check_owner, full, identity_means, numbered

CorrectionForm = Literal["softmax", "cosface", "arcface"]


class Constants(NamedTuple):
    """Scale and margin of a form; its self term is `own` at unit length, the squared length where there is no scale."""

    scale: float
    own: float


def constants(form: CorrectionForm, scale: float | None, margin: float | None) -> Constants | None:
    """Checked constants of a normalised form, with the losses' own defaults; None for the raw one."""
    match form:
        case "softmax":
            if scale is not None or margin is not None:
                raise FedVisageError("the softmax form of gradient correction has no scale and no margin")
            return None
        case "cosface":
            scale, margin = 30.0 if scale is None else scale, 0.35 if margin is None else margin
            right, own = 0 <= margin <= 2, 1 - margin
        case "arcface":
            scale, margin = 64.0 if scale is None else scale, 0.5 if margin is None else margin
            right, own = 0 <= margin < math.pi, math.cos(margin)
        case _:
            known = ("softmax", "cosface", "arcface")
            raise FedVisageError(f"gradient correction has no form '{form}': {nearest(form, known)}")
    if not 0 < scale < math.inf:
        raise FedVisageError(f"scale is {scale}: it multiplies cosines and must be a positive number")
    if not right:
        raise FedVisageError(f"the margin of gradient correction's {form} form is {margin}, which is no such margin")
    return Constants(scale, scale * own)


def gradient_correction(
    class_embeddings: Tensor,
    owner: Tensor,
    identity: Tensor | None = None,
    *,
    form: CorrectionForm = "softmax",
    scale: float | None = None,
    margin: float | None = None,
) -> Tensor:
    """FedGC's summed regulariser of class embeddings (C, d), the party `owner` (C,) of each and its `identity` (C,).

    Identities are all different where none are given. Dense: a (C, C) matrix, gradient by autograd.
    """
    check_owner(class_embeddings, owner, identity)
    normal = constants(form, scale, margin)
    with without_autocast(class_embeddings):
        embeddings = full(class_embeddings)
        anchors, held = anchors_and_holders(embeddings.detach(), owner, identity)
        if normal is None:
            own = torch.linalg.vecdot(anchors, anchors)
        else:
            embeddings, anchors = unit(embeddings), unit(anchors) * normal.scale
            own = anchors.new_full(anchors.shape[:1], normal.own)
        negatives = (anchors @ embeddings.T).masked_fill(held, -math.inf)
        everything: Tensor = torch.cat([own.unsqueeze(1), negatives], dim=1).logsumexp(dim=1)
        losses: Tensor = everything - own
        return losses.sum()


def cosine_regulariser(
    class_embeddings: Tensor, owner: Tensor, identity: Tensor | None = None, *, normalised: bool = False
) -> Tensor:
    """FedCos: Σ W_zj·W'_ki over all ordered pairs of different parties, anchors W' detached; dense.

    Raw inner products as in the paper, or cosines when `normalised`. Shared identities as in `gradient_correction`.
    """
    check_owner(class_embeddings, owner, identity)
    with without_autocast(class_embeddings):
        embeddings = full(class_embeddings)
        anchors, held = anchors_and_holders(embeddings.detach(), owner, identity)
        if normalised:
            embeddings, anchors = unit(embeddings), unit(anchors)
        return (anchors @ embeddings.T).masked_fill(held, 0).sum()


def anchors_and_holders(class_embeddings: Tensor, owner: Tensor, identity: Tensor | None) -> tuple[Tensor, Tensor]:
    """One anchor (L, d) per identity, and whether a class embedding belongs to one of its holders, (L, C)."""
    if identity is None:
        return class_embeddings, owner[:, None] == owner
    person, party = numbered(identity), numbered(owner)
    holds = torch.zeros(int(person.max()) + 1, int(party.max()) + 1, dtype=torch.bool, device=owner.device)
    holds[person, party] = True
    return identity_means(class_embeddings, person), holds[:, party]
