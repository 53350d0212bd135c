"""Synthetic faces: a vectorised renderer of three-dimensional heads, no downloads.

Every image is a function of (seed, identity, index): who it is depends on the first two, how the picture was taken on
all three. A head is a union of quadrics ray-cast in closed form under its pose (`geometry`), painted with features at
the hit points (`paint`), lit and photographed (`camera`). A domain (`DOMAINS`) shifts skin, light and camera.
"""

from fedvisage.faces.synthetic.domains import DEFAULT_DOMAIN, DOMAINS, Domain
from fedvisage.faces.synthetic.source import SyntheticFaces, render

__all__ = ["DEFAULT_DOMAIN", "DOMAINS", "Domain", "SyntheticFaces", "render"]
