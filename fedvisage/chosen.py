"""The models of the round that validation people liked best, kept beside those of the last round.

`evaluation.choose` names the score that decides. `chosen/` in the run's folder holds the model, the parties' own models
where the method gives them some and they are on this machine, and which round it was. Protocols take that folder in the
place of the run's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError, nearest

CHOSEN = "chosen"
ROUND = "round.json"


@dataclass(frozen=True)
class Chooser:
    """Keeps the models of the best round so far."""

    by: str
    """A score on validation people, such as `tar@0.01`; none for no choice."""
    run: Path
    """The folder of the federation."""

    @property
    def folder(self) -> Path:
        """Where the models of the chosen round are."""
        return self.run / CHOSEN

    def see(self, round: int, scores: Mapping[str, float], save: Callable[[Path], None]) -> None:
        """Have a round's models saved if none before it scored as high.

        They take the place of others once they are whole; a round that is repeated after a kill takes its own place.
        """
        if not self.by:
            return
        self.check(scores)
        score, kept = scores[self.by], chosen_round(self.run)
        if kept and kept["round"] < round and score <= kept["score"]:
            return
        new = self.folder.with_name(f"{CHOSEN}.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        save(new)
        table = {"round": round, "by": self.by, "score": score}
        write_atomically(new / ROUND, [json.dumps(table).encode()])
        shutil.rmtree(self.folder, ignore_errors=True)
        new.rename(self.folder)

    def check(self, scores: Mapping[str, float]) -> None:
        """Refuse to choose by a score that is not among these."""
        if self.by not in scores:
            raise FedVisageError(f"evaluation.choose: there is no score '{self.by}': {nearest(self.by, scores)}")


def chosen_round(run: Path) -> dict[str, Any] | None:
    """The chosen `round` of a run, `by` what and with which `score`; None where none was chosen."""
    path = run / CHOSEN / ROUND
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        return {"round": int(found["round"]), "by": str(found["by"]), "score": float(found["score"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedVisageError(f"{path} is damaged: {error!r}; remove {path.parent}") from None


def models_of(path: Path) -> tuple[Path, str | None]:
    """The folder of a run or of its chosen round that a path names or lies in, and the party where it is one's."""
    folder = path.parent if path.suffix == ".safetensors" else path
    return (folder.parents[1], folder.name) if folder.parent.name == "parties" else (folder, None)


def run_of(models: Path) -> Path:
    """The run whose models a folder holds: the run's own folder, or that of its chosen round."""
    own = models.resolve().name == CHOSEN and not (models / "recipe.toml").exists()
    return models.resolve().parent if own else models
