"""The parts of the transport and of a deployment, without a federation around them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.streaming.download_service import ProduceRC
from nvflare.fuel.utils import fobs
from real_hosts import RECIPE, recipe_with

import fedvisage as fv
from fedvisage.build import resolve
from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import BACKBONE, OPTIMISER, PRIVATE_EMBEDDINGS, Parcel, Stamp, encode, pieces, shared_groups
from fedvisage.core.phase import TRAINER
from fedvisage.core.randomness import Streams
from fedvisage.deploy.desk import FaceDesk, Invitation, digest, own_share
from fedvisage.deploy.folder import Deployment, Settings
from fedvisage.deploy.party import SPLIT, PartyFolder, open_party_folder
from fedvisage.deploy.party import Settings as PartySettings
from fedvisage.deploy.provision import authorization
from fedvisage.deploy.shares import hand_out, part_of
from fedvisage.deploy.site import FacePolicy
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet, write_faceset
from fedvisage.faces.partition import PartyFaces, hosted_partition, make_partition
from fedvisage.federation.nvflare.body import Body
from fedvisage.federation.nvflare.courier import BLOCK, Bodies, Intake
from fedvisage.federation.nvflare.link import Closed, Listener, call
from fedvisage.federation.nvflare.parts import join_parts, own_groups
from fedvisage.federation.nvflare.wire import ANSWER, FAILED, FEW, as_content, look, reason_of
from fedvisage.privacy import Policy, Refused


def test_a_parcel_in_two_parts_is_the_same_parcel() -> None:
    shared = {"w": torch.arange(6.0).reshape(2, 3)}
    stamp = Stamp(2, "train", 1)
    parcels = {
        name: Parcel(
            {BACKBONE: shared, OPTIMISER: {"m": torch.full((3,), float(number))}}, {"n": float(number)}, stamp, "g"
        )
        for number, name in enumerate("ab")
    }
    common = shared_groups(parcels)
    assert list(common) == [BACKBONE]
    for name, parcel in parcels.items():
        first, second = b"".join(pieces(Parcel(common))), b"".join(pieces(parcel, own_groups(parcel, common)))
        assert encode(join_parts(first, second), [BACKBONE, OPTIMISER]) == encode(parcel), name


def test_what_the_wire_carries_is_bytes_that_nvflare_packs_without_pickle() -> None:
    data = Shareable()
    data[ANSWER] = encode(Parcel({BACKBONE: {"w": torch.ones(4)}}))
    packed = fobs.dumps(data)
    assert b"pickle" not in packed
    assert fobs.loads(packed)[ANSWER] == data[ANSWER]


@pytest.mark.parametrize("size", [0, 1, FEW, FEW + 1, 3 * BLOCK])
def test_few_bytes_travel_within_a_message_and_many_as_a_body(size: int) -> None:
    payload = np.arange(size, dtype=np.uint8).tobytes()
    content = as_content([payload[:9], memoryview(payload)[9:]])
    assert isinstance(content, Body) == (size > FEW)
    assert look(content) == payload


@pytest.mark.parametrize("content", [None, "text", [b"x"], np.zeros(3), {"a": 1}])
def test_what_is_no_bytes_is_refused(content: object) -> None:
    with pytest.raises(ValueError, match="bytes"):
        look(content)


@pytest.mark.parametrize("sizes", [[1], [BLOCK], [BLOCK + 1, 7], [3 * BLOCK - 5, BLOCK, 2]])
@pytest.mark.parametrize("in_file", [False, True])
def test_bodies_are_fetched_block_by_block(tmp_path: Path, sizes: list[int], in_file: bool) -> None:
    """The sender's blocks, each asked for with what came with the one before, fill the receiver's bodies."""
    sent = {f"T{n}": Body.spooled([os.urandom(size)], tmp_path) for n, size in enumerate(sizes)}
    source, intake = Bodies(sent), Intake(tmp_path if in_file else None)
    state: dict[str, object] = {}
    blocks = 0
    while (answer := source.produce(state, "party"))[0] != ProduceRC.EOF:
        _, data, state = answer
        assert data is not None
        assert len(data) <= BLOCK
        state = intake.consume("ref", state, data)
        blocks += 1
    intake.download_completed("ref")
    assert blocks == sum(-(-size // BLOCK) for size in sizes)
    for name, body in sent.items():
        assert bytes(intake.bodies[name].whole()) == bytes(body.whole())
    assert list(tmp_path.iterdir()) == [], "the files have no names"


@pytest.mark.parametrize(
    "state",
    [
        {"name": "T0", "size": 1 << 40, "start": 0, "count": 3},
        {"name": "T0", "size": 10, "start": 4, "count": 3},
        {"name": "T0", "size": 2, "start": 0, "count": 3},
    ],
    ids=["too large", "not the next", "beyond the end"],
)
def test_a_block_that_does_not_fit_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="bytes"):
        Intake(None).consume("ref", state, b"abc")


def test_a_body_that_ends_early_is_refused(tmp_path: Path) -> None:
    intake = Intake(tmp_path)
    intake.consume("ref", {"name": "T0", "size": 10, "start": 0, "count": 3}, b"abc")
    with pytest.raises(ValueError, match="ended early"):
        intake.download_completed("ref")
    with pytest.raises(ValueError, match="shorter"):
        intake.bodies["T0"].whole()


def test_a_body_in_a_file_keeps_its_bytes_after_its_memory_was_let_go(tmp_path: Path) -> None:
    body = Body.spooled([b"ab", memoryview(b"cd")], tmp_path)
    view = body.whole()
    assert bytes(view) == b"abcd"
    body.rest()
    del body
    assert bytes(view) == b"abcd"


def test_a_file_crosses_the_link_as_its_descriptor(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    here, there = call(tmp_path), listener.accept(5)
    here.send({"n": 0}, [b"first"])
    here.send_file({"n": 1}, Body.spooled([b"second"], tmp_path))
    here.send({"n": 2}, [])
    got = [there.receive(5) for _ in range(3)]
    assert [header["n"] for header, _ in got] == [0, 1, 2]
    assert [bytes(look(content)) for _, content in got] == [b"first", b"second", b""]
    assert isinstance(got[1][1], Body)
    for end in (here, there, listener):
        end.close()


def test_a_failure_is_one_line_and_no_traceback() -> None:
    assert reason_of(FedVisageError("first\nsecond")) == "first second"
    assert reason_of(OSError("first\nsecond")) == "OSError: first"
    assert reason_of(ValueError("x" * 9999)).startswith("ValueError: xxx")
    assert len(reason_of(ValueError("x" * 9999))) == 500
    assert reason_of(KeyboardInterrupt()) == "KeyboardInterrupt: "


@given(sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=4))
def test_frames_arrive_whole_and_in_order(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    folder = tmp_path_factory.mktemp("link")
    listener = Listener(folder)
    assert oct((folder / "run.sock").stat().st_mode & 0o777) == "0o600"
    here = call(folder)
    there = listener.accept(5)
    payloads = [os.urandom(size) for size in sizes]
    sender = threading.Thread(target=lambda: [here.send({"n": n}, [p]) for n, p in enumerate(payloads)])
    sender.start()
    for number, payload in enumerate(payloads):
        header, got = there.receive(5)
        assert (header["n"], got) == (number, payload)
    sender.join()
    with pytest.raises(TimeoutError):
        there.receive(0.01)
    here.close()
    with pytest.raises(Closed):
        there.receive(5)
    there.close()
    listener.close()
    assert list(folder.iterdir()) == []


def test_a_socket_can_be_in_a_deep_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    listener = Listener(deep)
    link = call(deep)
    listener.accept(5).close()
    link.close()
    listener.close()
    with pytest.raises(Closed, match="no run listens"):
        call(deep)


def faces_of(count: int, people: int) -> FaceSet:
    pixels = np.random.default_rng(1).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    return FaceSet(ArrayImages(pixels), np.arange(count) % people, tuple(f"p{number}" for number in range(people)))


@given(held_out=st.floats(0, 0.9), people=st.integers(2, 5), each=st.integers(2, 6), seed=st.integers(0, 99))
def test_a_party_splits_its_own_folder_as_a_partition_would(
    tmp_path_factory: pytest.TempPathFactory, held_out: float, people: int, each: int, seed: int
) -> None:
    """The same people, the same images and the same split, with the labels in the same order."""
    folder = tmp_path_factory.mktemp("party")
    recipe = fv.Recipe.model_validate({"seed": seed, "partition": {"parties": 1, "held_out": held_out}})
    whole = faces_of(people * each, people)
    partition = make_partition(whole, recipe.partition, Streams(seed).child("partition"))
    share = partition.parties["party-00"]
    own = part_of(whole, sorted([*share.train, *share.held_out], key=lambda i: (whole.labels[i], i)))
    alone = PartyFaces(own, own_share(PartyFolder(folder, PartySettings(name="party-00")), own, recipe, TRAINER))
    together = PartyFaces(whole, share)
    for one, other in ((alone.train, together.train), (alone.held_out, together.held_out)):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert np.array_equal(one.all(), other.all())
            assert np.array_equal(one.labels, other.labels)
            assert one.names == other.names


def test_shares_handed_out_are_the_ones_a_run_in_process_has(tmp_path: Path) -> None:
    recipe = resolve(recipe_with(tmp_path))
    deployment = Deployment(tmp_path / "f", Settings(parties={f"party-0{n}": TRAINER for n in range(3)}))
    for name in deployment.roles:
        deployment.party(name).mkdir(parents=True)
        PartyFolder(deployment.party(name), PartySettings(name=name)).save()
    hand_out(recipe, deployment)
    from fedvisage.build import open_faces

    faces = open_faces(recipe, tmp_path / "cache")
    partition = make_partition(faces, recipe.partition, Streams(recipe.seed).child("partition"))
    hosted = hosted_partition(faces, recipe.partition, deployment.roles, Streams(recipe.seed).child("partition"))
    assert (hosted.public, hosted.test) == (partition.public, partition.test)
    for name, share in partition.parties.items():
        folder = open_party_folder(deployment.party(name))
        own = folder.faces()
        there = PartyFaces(own, own_share(folder, own, recipe, TRAINER))
        here = PartyFaces(faces, share)
        assert np.array_equal(there.train.all(), here.train.all())
        assert np.array_equal(there.train.labels, here.train.labels)
        public = folder.public()
        assert public is not None
        assert digest(Faces(public, np.arange(len(public)))) == digest(Faces(faces, partition.public))


@pytest.mark.parametrize(
    "table", ["{", '{"train": [0]}', '{"train": [0, 0], "held_out": []}', '{"train": [9], "held_out": []}']
)
def test_a_split_that_cannot_be_is_an_error(tmp_path: Path, table: str) -> None:
    (tmp_path / SPLIT).write_text(table)
    with pytest.raises(FedVisageError, match=r"split\.json"):
        PartyFolder(tmp_path, PartySettings(name="a")).split(4)


@pytest.fixture
def party(tmp_path: Path) -> PartyFolder:
    folder = PartyFolder(tmp_path / "party", PartySettings(name="party-00"))
    folder.folder.mkdir()
    folder.save()
    write_faceset(folder.folder / "faces", faces_of(8, 2))
    return folder


def invite(**more: object) -> Invitation:
    recipe = fv.Recipe.model_validate({"faces": {"size": 16}, "backbone": {"name": "ir-tiny"}, **more})
    return Invitation("0" * 16, resolve(recipe), "", TRAINER, "", {}, {})


def test_an_invitation_crosses_whole(tmp_path: Path) -> None:
    sent = Invitation("ab" * 8, resolve(recipe_with(tmp_path)), "alone", TRAINER, "digest", {"bn": torch.ones(2)}, {})
    got = Invitation.unpack(sent.pack())
    assert got.recipe == sent.recipe
    assert (got.run, got.compared, got.role, got.public) == (sent.run, "alone", TRAINER, "digest")
    assert torch.equal(got.batchnorm["bn"], torch.ones(2))
    for broken in (b"", sent.pack()[:-1], b"x" * 100):
        with pytest.raises(FedVisageError):
            Invitation.unpack(broken)
    with pytest.raises(FedVisageError, match="no run id"):
        Invitation.unpack(Invitation("../../etc", sent.recipe, "", TRAINER, "", {}, {}).pack())


def test_public_faces_that_are_not_the_runs_refuse_the_party(party: PartyFolder) -> None:
    write_faceset(party.folder / "public", faces_of(4, 2))
    own = faces_of(4, 2)
    good = digest(Faces(own, np.arange(4)))
    recipe = invite().recipe
    FaceDesk(party, "party-00", Invitation("0" * 16, recipe, "", TRAINER, good, {}, {})).close()
    with pytest.raises(Refused, match="its public faces are not the ones of the run"):
        FaceDesk(party, "party-00", Invitation("0" * 16, recipe, "", TRAINER, "0" * 64, {}, {}))


def test_a_run_that_needs_public_faces_refuses_a_party_without_them(party: PartyFolder) -> None:
    with pytest.raises(Refused, match=r"the run needs the public faces .* in public/"):
        FaceDesk(party, "party-00", invite(method={"name": "fedfr"}))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("party-01", {}, "its certificate says party-01, its folder party-00"),
        ("party-00", {"faces": {"size": 32}}, "its images are 16 x 16 pixels, the recipe's 32 x 32"),
        ("party-00", {"method": {"name": "central"}}, "pools images"),
        ("party-00", {"federation": {"rounds": 1001}}, "1001 rounds are more than 1000"),
    ],
)
def test_a_party_refuses_what_it_cannot_or_may_not_do(
    party: PartyFolder, name: str, change: dict[str, object], reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        FaceDesk(party, name, invite(**change))
    assert reason in (party.log / "party.log").read_text()


def test_one_process_at_a_time_works_on_a_partys_state(party: PartyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvisage.deploy.desk.PATIENCE", 0.2)
    first = FaceDesk(party, "party-00", invite())
    with pytest.raises(FedVisageError, match="another process of this party"):
        FaceDesk(party, "party-00", invite())
    first.close()
    FaceDesk(party, "party-00", invite()).close()


def context(site: Path) -> FLContext:
    made = FLContext()
    workspace = SimpleNamespace(get_root_dir=lambda: str(site))
    made.put(FLContextKey.WORKSPACE_OBJECT, workspace, private=True, sticky=False)
    return made


@pytest.mark.parametrize("group", [BACKBONE, PRIVATE_EMBEDDINGS])
def test_nvflares_filter_holds_back_what_the_policy_forbids(party: PartyFolder, group: str) -> None:
    """Even where the executor had let it pass: the filter reads the bytes and the policy itself."""
    result = Shareable()
    result[ANSWER] = encode(Parcel({group: {"x": torch.zeros(1)}}))
    passed = FacePolicy().process(result, context(party.folder / "site"))
    if group in Policy().groups:
        assert passed is result
    else:
        assert passed[FAILED] == f"policy: {group} may not leave this party; nothing was sent"
        assert ANSWER not in passed


def test_nvflares_filter_lets_nothing_pass_but_parcels_and_refusals(party: PartyFolder) -> None:
    for content in ({"DATA": {"w": 1}}, {ANSWER: b"no parcel"}, {ANSWER: encode(Parcel()), "more": 1}):
        result = Shareable()
        result.update(content)
        assert set(FacePolicy().process(result, context(party.folder / "site"))) - {"__headers__"} == {FAILED}


def test_nobody_may_send_code_or_shell_commands() -> None:
    for role, rights in authorization()["permissions"].items():
        assert rights["byoc"] == rights["shell_commands"] == "none", role
    assert json.loads(json.dumps(authorization()))["format_version"] == "1.0"
    assert "METHOD" not in RECIPE
