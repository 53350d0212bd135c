"""Methods that leak, written as a user innocently would, and what leaves all the same: the bits of plain averaging.

Each method below was first run at the commit before answers were sealed, with the same two rounds and two parties:

| what the method does | then | now |
|---|---|---|
| trains on after its answer (Ditto, the obvious way) | the personal models were averaged | harmless |
| writes through `.data` after its answer | the written values were averaged | harmless |
| keeps the answer's tensors and changes them | the changed values were averaged | harmless |
| writes into what came down | the server's model and the next party's start were changed | harmless |
| leaves a hook on a module | the next party's training was changed | harmless |
| keeps the tensor it sends and changes it | the changed values were summed | harmless |
| sends an answer that another party made | it was counted | stopped |
| makes its answer by hand, of the live model | as the method liked | stopped |
| adds a group that it does not declare | stopped | stopped |

Code that sets out to get around the core in a party's own process (threads, a look into private attributes) is out of
scope: whoever runs hostile code at a party has its photos anyway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import freeze
import pytest
import torch
from methods.small import FACES, PARTITION, WORK, federate, network
from torch import Tensor, nn

from fedvisage.core.assembly import Assembly, with_groups
from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Context, Party
from fedvisage.core.parcel import BACKBONE, BUFFERS, OPTIMISER, PRIVATE_EMBEDDINGS, Parcel
from fedvisage.core.phase import TRAINER, Phase
from fedvisage.core.randomness import Streams
from fedvisage.core.sealing import Answer, ends_with_answer, lend
from fedvisage.core.weights import Weights, snapshot
from fedvisage.faces.partition import party_faces
from fedvisage.methods.fedavg import EMBEDDINGS, FedAvg
from fedvisage.training import Correct


class Ditto(FedAvg):
    """A personal model is trained after the answer was made, from where the party's last one stood."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        answer = super().train(party, parcel)
        party.weights.load(party.state.get("personal", {}))
        self.fit(party, parcel, party.weights.model, party.state[EMBEDDINGS].clone())
        party.state["personal"] = party.weights.all()
        return answer


class WritesData(FedAvg):
    """The model is scaled in place after the answer, past everything that PyTorch notes."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        answer = super().train(party, parcel)
        for parameter in party.weights.model.parameters():
            parameter.data.mul_(3.0)
        return answer


class ChangesAnswer(FedAvg):
    """The answer's own tensors are changed once it is made."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        answer = super().train(party, parcel)
        for tensor in answer[BACKBONE].values():
            tensor.add_(1.0)
        return answer


class WritesDown(FedAvg):
    """What came down is used as scratch space, after local work and before an answer is made of it."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        answer = super().train(party, parcel)
        for tensor in parcel[BACKBONE].values():
            tensor.zero_()
        for tensors in parcel.tensors.values():
            for tensor in tensors.values():
                tensor.data.sub_(7.0)
        return answer


class LeavesHook(FedAvg):
    """A hook that adds noise to every layer's output stays on the process's one model."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        answer = super().train(party, parcel)

        def noise(module: nn.Module, _: Any, output: Tensor) -> Tensor:
            return output + 0.5

        for module in party.weights.model.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(noise)
        return answer


class KeepsWhatItSends(FedAvg):
    """Its own group is summed; the tensor that it sent is changed before the answer is read."""

    classifier: Literal["private"] = "private"

    def phases(self) -> tuple[Phase, ...]:
        join, train = super().phases()
        return join, with_groups(train, down={OPTIMISER: "all"}, up={OPTIMISER: "mean"})

    def start(self, context: Context) -> State:
        return super().start(context) | {OPTIMISER: {"m": torch.zeros(3)}}

    def train(self, party: Party, parcel: Parcel) -> Answer:
        mine = torch.ones(3)
        answer = super().train(party, parcel).more({OPTIMISER: {"m": mine}})
        mine.mul_(1e6)
        return answer


class SendsAnothersAnswer(FedAvg):
    """Every party after the first returns what the first one made."""

    first: ClassVar[list[Answer]] = []

    def train(self, party: Party, parcel: Parcel) -> Answer:
        self.first.append(super().train(party, parcel))
        return self.first[0]


class SendsUndeclared(FedAvg):
    """The class embeddings that it keeps private are sent along."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        return super().train(party, parcel).more({PRIVATE_EMBEDDINGS: {"own": party.state[EMBEDDINGS]}})


class MakesParcel(FedAvg):
    """The answer is made by hand, of the live model."""

    def train(self, party: Party, parcel: Parcel) -> Any:
        super().train(party, parcel)
        return Parcel({BACKBONE: party.weights.backbone, BUFFERS: party.weights.buffers})


class Tuned(FedAvg):
    """A method of a user's that leaves `train` as it is."""

    def correction(self, party: Party, parcel: Parcel) -> Correct | None:
        return None


HONEST = FedAvg(training=WORK)


def leaving(method: FedAvg, folder: Path, **more: Any) -> Mapping[str, Tensor]:
    """What the server made of the answers of two rounds."""
    server: State = federate(folder, method, **more).server
    return {f"{group}/{name}": t for group in ("backbone", "buffers") for name, t in server[group].items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tensor]:
    return leaving(HONEST, tmp_path_factory.mktemp("honest"))


@pytest.mark.parametrize("leaky", [Ditto, WritesData, ChangesAnswer, WritesDown, LeavesHook])
def test_the_bits_that_leave_are_those_of_the_answer(
    leaky: type[FedAvg], honest: Mapping[str, Tensor], tmp_path: Path
) -> None:
    assert same(leaving(leaky(training=WORK), tmp_path), honest)


def test_a_tensor_that_was_sent_is_the_methods_own_again(tmp_path: Path) -> None:
    server = federate(tmp_path, KeepsWhatItSends(training=WORK)).server
    assert server[OPTIMISER]["m"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("leaky", "reason"),
    [
        (SendsAnothersAnswer, "must return what party.answer"),
        (MakesParcel, "must return what party.answer"),
        (SendsUndeclared, "would send undeclared 'class_embeddings.private'; nothing was sent"),
    ],
)
def test_an_answer_of_another_kind_is_stopped_at_the_party(leaky: type[FedAvg], reason: str, tmp_path: Path) -> None:
    SendsAnothersAnswer.first.clear()
    with pytest.raises(FedVisageError, match="parties counted"):
        federate(tmp_path, leaky(training=WORK))
    rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    up = {row["party"] for row in rows if row.get("phase") == "train" and row.get("direction") == "up"}
    assert up == ({"ann"} if leaky is SendsAnothersAnswer else set())
    assert reason in (tmp_path / "failures.log").read_text()


def addresses(method: FedAvg) -> tuple[int, int]:
    """Where the model's backbone is, and where the answer's is."""
    weights = Weights(network())
    start = {BACKBONE: snapshot(weights.backbone), BUFFERS: snapshot(weights.buffers)}
    party = Party(
        "ann", TRAINER, 1, party_faces(FACES, PARTITION, "ann")[1], {}, weights, Streams(1), rates=lambda _: 0.05
    )
    method.join(party, Parcel())
    sent = Assembly([method]).local(Assembly([method]).phases["train"], party, lend(Parcel(start))).parcel()
    return next(iter(weights.backbone.values())).data_ptr(), next(iter(sent[BACKBONE].values())).data_ptr()


@pytest.mark.parametrize(("method", "copied"), [(FedAvg, False), (Tuned, False), (Ditto, True), (WritesData, True)])
def test_an_answer_is_copied_unless_the_packages_own_party_half_made_it(method: type[FedAvg], copied: bool) -> None:
    model, sent = addresses(method(training=WORK))
    assert (model != sent) == copied


def test_a_mark_of_ones_own_does_not_spare_the_copy() -> None:
    class Marked(FedAvg):
        @ends_with_answer
        def train(self, party: Party, parcel: Parcel) -> Answer:
            return super().train(party, parcel)

    model, sent = addresses(Marked(training=WORK))
    assert model != sent


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedgc + fv"])
def test_methods_of_the_package_give_the_same_bits_with_every_answer_copied(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared = freeze.bits(freeze.run_case(name, tmp_path))
    monkeypatch.setattr(Assembly, "nothing_follows", lambda *_: False)
    (tmp_path / "copied").mkdir()
    assert freeze.bits(freeze.run_case(name, tmp_path / "copied")) == spared
