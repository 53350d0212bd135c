"""FedGC: class embeddings corrected on the server (Niu & Deng, AAAI 2022).

A party trains as in FedPE (`fedavg.py`): against its own people only, eq. 4. Nothing then keeps people of different
parties apart. So it also sends its class embeddings W_k (C_k, d), and after averaging the backbones (Algorithm 1, line
11) the server takes one step down the regulariser of eq. 5 over all of them (lines 12-13), W -= λ·η·∇Reg, and returns
to every party its own. That step is `separation.GradientCorrection`; FedPE is this method with regulariser `none`,
FedCos (Table 4) with regulariser `cosine`, FedPE+Fixed (Table 5) is `embeddings = "fixed"` without a regulariser.

The server sees every person's class embedding: "private embeddings" means private from the other parties.
"""

from __future__ import annotations

from typing import ClassVar

from fedvisage.core.method import METHODS
from fedvisage.methods.fedavg import FedPE


@METHODS.register("fedgc")
class FedGC(FedPE):
    """FedPE with the server's gradient correction."""

    summary: ClassVar[str] = "FedPE; the server sees all class embeddings and moves people of different parties apart"
    default_regulariser: ClassVar[str] = "gradient-correction"
