"""People of different parties whom a run's model takes for most alike: the numbers behind FedGC's Figure 3.

The pairs are those of the run's map (`classmap`): its own closest four, or another run's after `report --pairs-of`.
"""

from __future__ import annotations

import json
from statistics import fmean

from fedvisage.classmap import MAP
from fedvisage.core.errors import FedVisageError
from fedvisage.protocols.progress import run_folder
from fedvisage.protocols.protocol import Options, Result, protocol
from fedvisage.protocols.subject import Data, Subject


@protocol(
    "alike",
    "cosines of the people of different parties who are most alike: class embeddings and images",
    True,
    by_round=False,
)
def alike(data: Data, subject: Subject, options: Options) -> Result:
    """Means over the pairs: of the two class embeddings, and of the images of one person with those of the other."""
    path = run_folder(subject) / MAP
    if not path.is_file():
        raise FedVisageError(f"{path} is not there: only a run whose parties keep class embeddings here has a map")
    pairs = json.loads(path.read_text("utf-8"))["alike"]["pairs"]
    result = Result(counts={"pairs": len(pairs), "image pairs": sum(sum(pair["between"]) for pair in pairs)})
    result.metrics["classes"] = fmean(pair["cosine"] for pair in pairs)
    result.metrics["images"] = fmean(pair["mean"] for pair in pairs)
    return result
