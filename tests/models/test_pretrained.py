"""dlib's network: the same numbers as dlib's own, its file read with care, and where trained weights come from."""

from __future__ import annotations

import os
from pathlib import Path

import dlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.models import MODEL_FILES, DlibResNet, create_backbone, open_model, save_model
from fedvisage.models.dlib_file import read_layers
from fedvisage.models.dlib_resnet import CHIP, CHIP_SIZE, cut_chips
from fedvisage.models.pretrained import load_dlib

DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[3] / "shared" / "data"))
FILE = MODEL_FILES["dlib"].path


@pytest.fixture(scope="module")
def network() -> DlibResNet:
    network = open_model("dlib")
    assert isinstance(network, DlibResNet)
    return network


def dlibs_own(chips: np.ndarray) -> np.ndarray:
    return np.stack([dlib.face_recognition_model_v1(str(FILE)).compute_face_descriptor(chip) for chip in chips])


def test_the_descriptors_are_dlibs_own_on_drawn_faces(network: DlibResNet) -> None:
    source = SyntheticFaces(1, 4, 1, CHIP_SIZE, "daylight")
    chips = np.concatenate([source.read(np.arange(4)), np.zeros((1, 150, 150, 3), np.uint8)])
    np.testing.assert_allclose(network.descriptors(chips), dlibs_own(chips), atol=1e-5)


@pytest.mark.skipif(not (DATA / "lfw-photos-dev").is_dir(), reason="no real faces: set FEDVISAGE_DATA")
def test_the_descriptors_are_dlibs_own_on_photos(network: DlibResNet) -> None:
    photos = sorted((DATA / "lfw-photos-dev" / "images").glob("*/*.jpg"))[:10]
    chips = np.stack([np.asarray(Image.open(photo).convert("RGB").resize((150, 150))) for photo in photos])
    np.testing.assert_allclose(network.descriptors(chips), dlibs_own(chips), atol=1e-5)


def test_the_file_holds_what_dlib_says(network: DlibResNet) -> None:
    layers = read_layers(FILE)
    assert sum(len(layer.values) for layer in layers) == 5_614_592
    assert [layer.kind for layer in layers] == ["con_4", "affine_"] * 29 + ["fc_2"]
    content = FILE.read_bytes()
    assert layers[0].values[0] == np.frombuffer(content, "<f4", 1, 352)[0]
    assert layers[2].values[0] == np.frombuffer(content, "<f4", 1, 19_826)[0]
    assert layers[-1].values[0] == np.frombuffer(content, "<f4", 1, 22_334_922)[0]
    assert not network.training


def test_a_chip_is_the_aligned_image_enlarged_about_its_middle_and_moved_up() -> None:
    across = torch.arange(112.0).expand(1, 3, 112, 112)  # every pixel holds its own column
    chip = cut_chips(across)[0, 0]
    assert chip.shape == (150, 150)
    for column in (10, 75, 140):
        torch.testing.assert_close(chip[75, column], torch.tensor((column - 74.5) / CHIP.scale + 55.5))
    down = cut_chips(across.transpose(2, 3))[0, 0]
    torch.testing.assert_close(down[75, 75], torch.tensor((75 - 74.5 - CHIP.down) / CHIP.scale + 55.5))
    assert down[149, 75] == 111  # beyond the image's last row, which repeats
    torch.testing.assert_close(cut_chips(across.flip(3)), cut_chips(across).flip(3), atol=2e-5, rtol=0)


def test_images_of_half_the_size_show_the_same_chip() -> None:
    large = torch.linspace(0, 1, 112).expand(1, 3, 112, 112)
    small = torch.nn.functional.avg_pool2d(large, 2)
    torch.testing.assert_close(cut_chips(small)[..., 40:110], cut_chips(large)[..., 40:110], atol=0.01, rtol=0)


def test_chips_of_another_size_are_refused(network: DlibResNet) -> None:
    with pytest.raises(FedVisageError, match=r"shape \(N, 150, 150, 3\); got uint8 of shape \(1, 112"):
        network.descriptors(np.zeros((1, 112, 112, 3), np.uint8))


HEAD = FILE.read_bytes()[:40_000]


@given(st.integers(0, len(HEAD)))
def test_a_file_that_ends_early_is_refused(tmp_path_factory, length: int) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("dat") / "short.dat"
    path.write_bytes(HEAD[:length])
    with pytest.raises(FedVisageError, match=r"short.dat is not a dlib face network: .*\(byte"):
        read_layers(path)


@given(st.lists(st.tuples(st.integers(0, 351), st.integers(0, 255)), min_size=1, max_size=5), st.binary(max_size=40))
def test_damaged_files_end_in_our_error(tmp_path_factory, changes, tail) -> None:  # type: ignore[no-untyped-def]
    content = bytearray(HEAD)
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.mktemp("dat") / "damaged.dat"
    path.write_bytes(bytes(content) + tail)
    with pytest.raises(FedVisageError):
        load_dlib(path)


@given(st.binary(max_size=300))
def test_random_bytes_end_in_our_error(tmp_path_factory, content: bytes) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("dat") / "random.dat"
    path.write_bytes(content)
    with pytest.raises(FedVisageError, match="is not a dlib face network"):
        load_dlib(path)


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="is not a dlib face network"):
        load_dlib(MODEL_FILES["dlib-detector"].path)
    with pytest.raises(FedVisageError, match=r"cannot read the network .*: No such file"):
        load_dlib(tmp_path / "nothing.dat")
    content = bytearray(FILE.read_bytes())
    content[352:356] = np.float32("nan").tobytes()
    (tmp_path / "nan.dat").write_bytes(content)
    with pytest.raises(FedVisageError, match="a parameter is not finite"):
        load_dlib(tmp_path / "nan.dat")


def test_a_model_is_opened_by_name_file_or_run(network: DlibResNet, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", network)
    image = np.random.default_rng(0).integers(0, 256, (1, 112, 112, 3), dtype=np.uint8)
    for source in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        assert np.array_equal(open_model(source).embed(image), network.embed(image))
    with pytest.raises(FedVisageError, match=r"no model 'dlb': neither a model file, nor a run's folder, nor.*'dlib'"):
        open_model("dlb")


def test_every_file_states_its_terms() -> None:
    for entry in MODEL_FILES.values():
        assert entry.installed
        assert entry.licence
        assert entry.trained_on
    assert "commercial" in MODEL_FILES["dlib-68-points"].licence


def test_weights_that_are_not_installed_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvisage.models.pretrained.PACKAGE", "no_such_package")
    with pytest.raises(FedVisageError, match=r'pip install "fedvisage\[pretrained\]"'):
        open_model("dlib")
    assert not MODEL_FILES["dlib"].installed


def test_a_fresh_network_of_this_kind_can_be_trained_too() -> None:
    network = create_backbone("dlib-resnet", image_size=48, embedding_size=16).train()
    network(torch.zeros(2, 3, 48, 48)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())
