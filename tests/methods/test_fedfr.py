"""FedFR against a loop by hand with torch alone, its modules one by one, and what stays at the party."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import FACES, Ran, federate, get, mean, network, put, random_head
from torch import Tensor
from torch.nn import functional

from fedvisage.config import Training
from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import BACKBONE, BUFFERS, PUBLIC_EMBEDDINGS, Parcel
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights
from fedvisage.faces.faceset import Faces
from fedvisage.faces.partition import Partition, Share, party_faces
from fedvisage.methods.evaluate import EvaluateAtParties, rank_one
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.fedfr import FedFR
from fedvisage.methods.pfm import PFM
from fedvisage.methods.pfm_fedfr import PFMFedFR
from fedvisage.models import personalised
from fedvisage.privacy import read_ledger
from fedvisage.training import Batch, batches
from fedvisage.training.views import Mixture, Part

WORK = Training(loss="cosface", scale=30.0, margin=0.4, batch_size=16, epochs=2, learning_rate=0.002, weight_decay=1e-3)
OWN = {"ann": tuple(range(4, 8)), "bob": tuple(range(8, 16))}
CLASSES = {"ann": 1, "bob": 2}
PARTITION = Partition(
    (0, 1, 2, 3, 16, 17, 18, 19), (), {name: Share("trainer", images) for name, images in OWN.items()}
)
"""Persons a and e are public, b is ann's, c and d are bob's."""
HARD = 0.51
PHI = torch.randn(2, 128, generator=torch.Generator().manual_seed(9))


def fedfr(folder: Path, *, rounds: int = 1, others: Any = (), **options: Any) -> Ran:
    method = FedFR(training=WORK, rounds=rounds, **options)
    return federate(folder, method, rounds=rounds, partition=PARTITION, public={"all": PHI}, others=others)


def unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True)


def frozen_copy(state: dict[str, Tensor]) -> Any:
    model = network().eval()
    put(model, state)
    return model


def binary_by_hand(cosines: Tensor, label: int, offsets: Tensor) -> Tensor:
    """Eq. 6 of one sample, written out person by person."""
    total = cosines.new_zeros(())
    for k, cosine in enumerate(cosines):
        bent = 2 * ((cosine + 1) / 2) ** 3 - 1
        if k == label:
            total = total + 0.7 / 30 * torch.log1p(torch.exp(-30 * (bent - 0.4) - offsets[k]))
        else:
            total = total + 0.3 / 30 * torch.log1p(torch.exp(30 * (bent + 0.4) + offsets[k]))
    return total


def by_hand(ran: Ran, rounds: int, threshold: float) -> tuple[dict[str, Tensor], Tensor, dict[str, Any]]:
    """Algorithm 1 with torch alone; returns global model, public class embeddings, and what each party keeps."""
    state, phi = {**ran.start[BACKBONE], **ran.start[BUFFERS]}, PHI
    keeps: dict[str, Any] = {}
    for name in OWN:
        head = random_head(name, CLASSES[name])
        keeps[name] = [head, torch.eye(128), torch.zeros(128), head.clone(), torch.zeros(len(head))]
    previous = dict.fromkeys(OWN, state)
    public = Faces(FACES, PARTITION.public)
    assert public.labels is not None
    for round in range(1, rounds + 1):
        answers, phis = [], []
        for name in OWN:
            own = party_faces(FACES, PARTITION, name)[1].train
            assert own.labels is not None
            near, far = frozen_copy(state), frozen_copy(previous[name])
            ours, theirs = (unit(torch.from_numpy(near.embed(f.all(), flip=False))) for f in (own, public))
            hard = np.flatnonzero((theirs @ ours.T).amax(dim=1).numpy() > threshold)
            parts = [Part(own, np.arange(len(own)), own.labels)]
            parts.append(Part(public, hard, own.classes + public.labels[hard]))
            model = network()
            put(model, state)
            model.train()
            live = [tensor.clone().requires_grad_() for tensor in [*keeps[name], phi]]
            parameters = [p for p in model.parameters() if p.requires_grad]
            optimiser = torch.optim.SGD([*parameters, *live], lr=0.002, momentum=0.9, weight_decay=1e-3)
            head, weight, bias, classifiers, offsets, table = live
            streams = Streams(1, "parties", round, name, "train")
            for batch in batches(Mixture(parts, own.classes + 2), WORK, streams, torch.device("cpu")):
                f = model(model.preprocess(batch.images))
                logits = 30 * unit(f) @ unit(torch.cat([head, table])).T
                logits = logits - 30 * 0.4 * functional.one_hot(batch.labels, logits.shape[1])
                loss = functional.cross_entropy(logits, batch.labels)
                with torch.no_grad():
                    g, p = (unit(m(m.preprocess(batch.images))) for m in (near, far))
                to_global, to_previous = ((unit(f) * v).sum(dim=1) / 0.5 for v in (g, p))
                loss = loss - 5 * (to_global - torch.logaddexp(to_global, to_previous)).mean()
                cosines = unit(f @ weight.T + bias) @ unit(classifiers).T
                loss = loss + 10 * sum(
                    binary_by_hand(row, int(label), offsets) for row, label in zip(cosines, batch.labels, strict=True)
                ) / len(cosines)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            keeps[name] = [tensor.detach() for tensor in live[:-1]]
            previous[name] = get(model, list(state))
            answers.append(previous[name])
            phis.append({"phi": table.detach()})
        state, phi = mean(answers, [4, 8]), mean(phis, [4, 8])["phi"]
    return state, phi, keeps


def test_two_rounds_with_every_term_equal_a_loop_by_hand(tmp_path: Path) -> None:
    ran = fedfr(tmp_path, rounds=2, threshold=HARD)
    state, phi, keeps = by_hand(ran, 2, HARD)
    everything = {**ran.server[BACKBONE], **ran.server[BUFFERS]}
    for name, value in state.items():
        assert torch.allclose(everything[name], value, atol=2e-5), name
    assert torch.allclose(ran.server[PUBLIC_EMBEDDINGS]["all"], phi, atol=2e-5)
    for name, kept in keeps.items():
        own = ran.party(name)
        ours = [own["class_embeddings"], *(own["branch"][key] for key in own["branch"])]
        assert all(torch.allclose(a, b, atol=2e-5) for a, b in zip(ours, kept, strict=True))


def test_some_public_images_are_hard_and_some_are_not() -> None:
    """So that the loop by hand says something about the selection."""
    model = network().eval()
    public = unit(torch.from_numpy(model.embed(Faces(FACES, PARTITION.public).all(), flip=False)))
    for images in OWN.values():
        own = unit(torch.from_numpy(model.embed(Faces(FACES, images).all(), flip=False)))
        hard = int(((public @ own.T).amax(dim=1) > HARD).sum())
        assert 0 < hard < len(public)


def test_with_every_module_off_it_is_fedpe(tmp_path: Path) -> None:
    off = fedfr(tmp_path / "a", rounds=2, public="none", contrastive=0.0, branch="none")
    plain = federate(tmp_path / "b", FedPE(training=WORK, rounds=2), partition=PARTITION)
    assert all(torch.equal(off.server[BACKBONE][n], t) for n, t in plain.server[BACKBONE].items())
    assert PUBLIC_EMBEDDINGS not in off.server


def test_the_contrastive_term_does_nothing_before_a_party_has_trained(tmp_path: Path) -> None:
    """The last model is then the global one: the term is log 2 and its gradient rounding noise."""
    one, none = (fedfr(tmp_path / str(c), contrastive=c, branch="none", public="none") for c in (5.0, 0.0))
    apart = [(one.server[BACKBONE][n] - t).abs().max() for n, t in none.server[BACKBONE].items()]
    assert max(float(a) for a in apart) < 1e-5
    losses = [first_loss(tmp_path / str(c)) for c in (5.0, 0.0)]
    assert losses[0] - losses[1] == pytest.approx(5 * math.log(2), abs=1e-3)


def first_loss(folder: Path) -> float:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return next(row["loss"] for row in rows if row["phase"] == "train")


def test_a_share_takes_as_many_public_images_whatever_the_network_has_become(tmp_path: Path) -> None:
    fedfr(tmp_path, rounds=2, share=0.3)
    rows = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    taken = [own["hard_negatives"] for row in rows if row["phase"] == "train" for own in row["parties"].values()]
    assert taken == [math.ceil(0.3 * len(PARTITION.public))] * len(taken)


def test_private_tensors_never_cross(tmp_path: Path) -> None:
    fedfr(tmp_path, rounds=2, threshold=HARD)
    rows = [row for row in read_ledger(tmp_path / "ledger.jsonl") if "party" in row]
    assert {row["group"] for row in rows} == {BACKBONE, BUFFERS, PUBLIC_EMBEDDINGS, "statistics"}
    names = {n for row in read_ledger(tmp_path / "ledger.jsonl") if "layout" in row for n, *_ in row["tensors"]}
    assert not any("transformation" in name or "classifiers" in name or "class_embeddings" in name for name in names)


def test_the_personal_model_is_the_local_one_with_the_transformation(tmp_path: Path) -> None:
    ran = fedfr(tmp_path, threshold=HARD)
    state = ran.party("bob")
    tensors = FedFR().personal(state)
    assert tensors is not None
    weights = Weights(network())
    images = FACES.images.read(np.arange(3))
    with personalised(weights, tensors) as model:
        personal = model.embed(images, flip=False)
    weights.load(state["local_model"])
    layer = state["branch"]
    expected = weights.model.embed(images, flip=False) @ layer["transformation.weight"].numpy().T
    np.testing.assert_allclose(personal, expected + layer["transformation.bias"].numpy(), atol=1e-4)


def test_the_parties_score_global_local_and_personal_models(tmp_path: Path) -> None:
    shares = {name: Share("trainer", images[1:], images[:1]) for name, images in OWN.items()}
    partition = Partition(PARTITION.public, (), shares)
    method = FedFR(training=WORK, rounds=1, threshold=HARD)
    federate(
        tmp_path,
        method,
        rounds=1,
        partition=partition,
        public={"all": PHI},
        others=(EvaluateAtParties(method=method),),
    )
    text = (tmp_path / "metrics.jsonl").read_text()
    assert all(f'"{model}_rank1"' in text for model in ("global", "local", "personal"))


@pytest.mark.parametrize("stage", ["fine-tune", "distil"])
def test_the_second_stage_adapts_the_last_global_model_at_each_party(stage: str, tmp_path: Path) -> None:
    ran = fedfr(tmp_path, branch="none", threshold=HARD, second_stage=stage, second_stage_epochs=1)
    adapted = {name: FedFR(branch="none").personal(ran.party(name)) for name in OWN}
    for name, tensors in adapted.items():
        assert tensors is not None
        assert any(not torch.equal(tensors[n], t) for n, t in ran.server[BACKBONE].items()), name
    ups = [r for r in read_ledger(tmp_path / "ledger.jsonl") if r.get("phase") == "adapt" and r["direction"] == "up"]
    assert {r["group"] for r in ups} == {"statistics"}


def test_distilling_adds_the_divergence_from_the_global_models_logits() -> None:
    """Weight times T² times the mean over images of Σ p (log p - log q), with p the frozen global model's."""
    images = torch.from_numpy(FACES.images.read(np.array(OWN["bob"])))
    with torch.no_grad():
        teachers = network().eval().features_of(images)
    batch = Batch(images, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), np.array(OWN["bob"]), (teachers,))
    others = {"class_embeddings": random_head("bob", 2)}
    options: Any = {"training": WORK, "public": "none", "distil_weight": 3.0, "distil_temperature": 2.0}
    plain, distilled = (FedFR(second_stage=stage, **options).second_loss(others) for stage in ("fine-tune", "distil"))
    features = torch.randn(8, 128, generator=torch.Generator().manual_seed(5))
    logits = [30 / 2.0 * unit(f) @ unit(others["class_embeddings"]).T for f in (teachers, features)]
    total = 0.0
    for wanted, given in zip(*(rows.double().softmax(dim=1) for rows in logits), strict=True):
        total += float((wanted * (wanted.log() - given.log())).sum())
    apart = distilled(features, batch) - plain(features, batch)
    assert float(apart) == pytest.approx(3.0 * 2.0**2 * total / 8, rel=1e-4)


def test_a_cosface_branch_ignores_public_images() -> None:
    method = FedFR(branch="cosface")
    others = {
        "transformation.weight": torch.eye(8),
        "transformation.bias": torch.zeros(8),
        "classifiers": torch.randn(3, 8, generator=torch.Generator().manual_seed(1)),
    }
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    all_own = method.branch_loss(features[:2], others, torch.tensor([0, 2]))
    mixed = method.branch_loss(features, others, torch.tensor([0, 2, 3, 7]))
    assert torch.equal(all_own, mixed)
    assert float(method.branch_loss(features, others, torch.tensor([3, 4, 5, 6]))) == 0


def test_without_public_people_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"set partition\.public"):
        federate(tmp_path, FedFR(training=WORK, rounds=1), rounds=1, partition=PARTITION)


def test_momentum_is_kept_over_rounds_where_the_recipe_says_so(tmp_path: Path) -> None:
    backbones = {}
    for state in ("reset", "keep"):
        method = FedFR(training=WORK.model_copy(update={"optimiser_state": state}), rounds=2, threshold=HARD)
        ran = federate(tmp_path / state, method, rounds=2, partition=PARTITION, public={"all": PHI})
        backbones[state] = ran.server[BACKBONE]
        assert ("optimiser" in ran.party("bob")) == (state == "keep")
    assert any(not torch.equal(backbones["keep"][n], t) for n, t in backbones["reset"].items())


def test_without_a_branch_the_personal_model_is_the_local_one(tmp_path: Path) -> None:
    """Table 1's rows without the branch are scored with each party's model before averaging."""
    ran = fedfr(tmp_path, branch="none", threshold=HARD)
    state = ran.party("bob")
    tensors = FedFR(branch="none").personal(state)
    assert tensors is not None
    assert all(torch.equal(tensors[name], state["local_model"][name]) for name in state["local_model"])


def test_the_parties_score_again_after_the_second_stage(tmp_path: Path) -> None:
    """The last personal score is the adapted model's, computed here from the party's own state."""
    shares = {name: Share("trainer", images[1:], images[:1]) for name, images in OWN.items()}
    partition = Partition(PARTITION.public, (), shares)
    method = FedFR(training=WORK, rounds=1, threshold=HARD, branch="none", second_stage="fine-tune")
    ran = federate(
        tmp_path,
        method,
        rounds=1,
        partition=partition,
        public={"all": PHI},
        others=(EvaluateAtParties(method=method),),
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows][-3:] == ["evaluate", "adapt", "evaluate_end"]
    weights = Weights(network())
    for name in OWN:
        faces = party_faces(FACES, partition, name)[1]
        own: Any = type("P", (), {"faces": faces, "weights": weights})
        tensors = method.personal(ran.party(name))
        assert tensors is not None
        with personalised(weights, tensors):
            assert rows[-1]["parties"][name]["personal_rank1"] == rank_one(own)


def test_under_pfm_it_is_fedfr_without_momentum_and_pfm_without_modules(tmp_path: Path) -> None:
    """Two rounds; the momentum is spread over the steps on own and public images."""
    plain = WORK.model_copy(update={"momentum": 0.0})
    options: Any = {"threshold": HARD, "rounds": 2}
    both = PFMFedFR(training=plain, **options), FedFR(training=plain, **options)
    ran = [
        federate(tmp_path / str(place), method, partition=PARTITION, public={"all": PHI}, weighting="samples")
        for place, method in enumerate(both)
    ]
    assert all(torch.equal(ran[0].server[BACKBONE][n], t) for n, t in ran[1].server[BACKBONE].items())
    bare: Any = {"public": "none", "contrastive": 0.0, "branch": "none"}
    alike = PFMFedFR(training=WORK, rounds=2, **bare), PFM(training=WORK, rounds=2)
    ran = [federate(tmp_path / f"bare {place}", method, partition=PARTITION) for place, method in enumerate(alike)]
    assert all(torch.equal(ran[0].server[BACKBONE][n], t) for n, t in ran[1].server[BACKBONE].items())
    full = federate(tmp_path / "full", PFMFedFR(training=WORK, **options), partition=PARTITION, public={"all": PHI})
    assert any(float(t.abs().max()) > 0 for t in full.server["optimiser"].values())
    assert PFMFedFR().personal(full.party("bob")) is not None


def test_the_momentum_is_spread_over_the_public_images_too(tmp_path: Path) -> None:
    """Bob's 8 images and 8 public ones are 2 steps of 8 per epoch, so 4 in two epochs, not 2."""
    work = WORK.model_copy(update={"batch_size": 8})
    method = PFMFedFR(training=work, rounds=1, public="all")
    faces = party_faces(FACES, PARTITION, "bob")[1]
    memo = {("training images", "bob"): method.images(_Bob(faces), network())[0]}
    one = {"w": torch.ones(1)}
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    correct = method.correction(_Bob(faces, memo), Parcel({"optimiser": one}))
    assert correct is not None
    correct({"w": parameter})
    assert float(parameter.grad) == pytest.approx(0.9 / 4)


class _Bob:
    name, round, streams = "bob", 2, Streams(1)

    def __init__(self, faces: Any, memo: Any = None) -> None:
        self.faces, self.memo, self.state = faces, memo or {}, {}
