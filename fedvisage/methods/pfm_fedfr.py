"""FedFR under partially federated momentum: public hard negatives and personal branches, with PFM's global momentum.

FedFR (Liu et al., AAAI 2022) says what a party trains on and keeps, PFM (Bai et al., arXiv 2105.02501) how its steps
and the server's average carry momentum; neither touches the other. K, the number of local steps that the momentum is
spread over, counts the sampled public images, and everything beside the backbone keeps a momentum at the party.
"""

from __future__ import annotations

from typing import ClassVar

from fedvisage.core.method import METHODS
from fedvisage.methods.fedfr import FedFR
from fedvisage.methods.pfm import PFM


@METHODS.register("pfm-fedfr")
class PFMFedFR(PFM, FedFR):
    """FedFR's parties, PFM's momentum."""

    summary: ClassVar[str] = "fedfr whose backbone carries pfm's global momentum: generic and personal models"
