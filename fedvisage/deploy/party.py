"""A party's folder, which its operator owns: faces, public faces, policy, private state and the log of what was sent.

party.toml      name, role, where the faces are, and the policy
faces/          the party's people, as `fedvisage data` writes them
split.json      optional: which images to train on (`train`) and which to hold out (`held_out`), by number
plugins/        code from outside the package that the policy lets run here, where it is not installed otherwise
public/         public people, where a method needs them at parties
state/RUN/      private state, in generations
models/RUN/     what a finished run gave the party: `model.safetensors`, its own where the method makes one
model.safetensors   the newest of them
log/RUN.jsonl   every parcel that came and every one that left
log/party.log   what was agreed to and what was refused
site/           the start-up kit: certificate, key and the site's configuration
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from fedvisage.config import Recipe, Section, load_recipe, to_toml, validated
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import TRAINER
from fedvisage.core.plugins import load_plugins, plugin_digest
from fedvisage.faces.faceset import FaceSet, open_faceset
from fedvisage.privacy import Policy, Refused

SETTINGS = "party.toml"
SPLIT = "split.json"
PLUGINS = "plugins"
MODEL = "model.safetensors"
GLOBAL_MODEL = "global.safetensors"
"""The model that all parties have, where a party has one of its own beside it."""
RECIPE = "recipe.toml"


class Settings(Section):
    """party.toml."""

    name: str
    role: str = TRAINER
    faces: str = "faces"
    """Folder of the party's people; below the party's folder unless absolute."""
    public: str = "public"
    """Folder of public people; it need not be there."""
    policy: Policy = Policy()


class PartyFolder:
    """The folder of one party."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder.absolute(), settings

    @property
    def policy(self) -> Policy:
        """What may leave."""
        return self.settings.policy

    @property
    def log(self) -> Path:
        """Where the party writes down what it does."""
        return self.folder / "log"

    def faces(self) -> FaceSet:
        """The party's people."""
        return open_faceset(self.folder / self.settings.faces)

    def public(self) -> FaceSet | None:
        """Public people, if the operator installed any."""
        path = self.folder / self.settings.public
        return open_faceset(path) if path.is_dir() else None

    def digest_of(self, plugin: str) -> str:
        """SHA-256 of a plug-in as this party has it."""
        return plugin_digest(plugin, [self.folder / PLUGINS])

    def load_plugins(self, names: Sequence[str]) -> None:
        """Import a run's plug-ins where the policy allows all of them; nothing is imported where it does not."""
        if found := self.policy.plugin_objections(names, self.digest_of):
            raise Refused(f"policy: {'; '.join(found)}")
        load_plugins(names, [self.folder / PLUGINS])

    def split(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Which images to train on and which to hold out, where the folder says so."""
        path = self.folder / SPLIT
        if not path.exists():
            return None
        try:
            table = json.loads(path.read_text("utf-8"))
            train, held_out = tuple(table["train"]), tuple(table["held_out"])
            sound = all(type(image) is int and 0 <= image < count for image in train + held_out)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedVisageError(f"cannot read {path}: {error}") from None
        if not sound or len({*train, *held_out}) != len(train) + len(held_out):
            raise FedVisageError(f"{path} names images twice, or beyond the {count:,} there are")
        return train, held_out

    def state(self, run: str) -> Path:
        """Private state of one run."""
        return self.folder / "state" / run

    def models(self, run: str) -> Path:
        """What a finished run gave."""
        return self.folder / "models" / run

    def use(self, home: Path) -> None:
        """Make the model of a run the party's newest: commands that are given the party's folder take that."""
        link = self.folder / f".{MODEL}.{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to((home / MODEL).relative_to(self.folder))
        link.replace(self.folder / MODEL)

    def newest(self) -> Path:
        """What the newest finished run gave."""
        path = self.folder / MODEL
        if not path.is_symlink():
            raise FedVisageError(f"{self.folder} holds no model yet: a run gives one when it has finished")
        return path.resolve().parent

    def recipe(self) -> Recipe:
        """The recipe that the newest model comes from."""
        return load_recipe(self.newest() / RECIPE)

    def note(self, text: str) -> None:
        """Write a line into the party's log."""
        self.log.mkdir(parents=True, exist_ok=True)
        with (self.log / "party.log").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")

    def save(self) -> None:
        """Write party.toml."""
        write_atomically(self.folder / SETTINGS, [_HEAD.encode(), to_toml(self.settings).encode()])


_HEAD = """# This party's own settings and policy. Its operator decides; nobody else can change them from afar.
# policy.groups: what may leave, in a "sum" with other parties' only or to be seen singly, too ("individual").
# class_embeddings.private are templates of this party's people.
# policy.plugins: code from outside the package that may run here (`fedvisage party plugin`).
# policy.require: protections without which this party takes no part.
"""


def open_party_folder(folder: Path) -> PartyFolder:
    """The party in a folder."""
    path = folder / SETTINGS
    if not path.is_file():
        raise FedVisageError(f"no party in {folder}: {SETTINGS} is missing")
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FedVisageError(f"cannot read {path}: {error}") from None
    return PartyFolder(folder, validated(Settings, table, str(path)))
