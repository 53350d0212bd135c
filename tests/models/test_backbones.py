"""Every registered backbone keeps the same promises."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedvisage.core.errors import FedVisageError
from fedvisage.models import BACKBONES, Backbone, create_backbone, load_model, save_model
from fedvisage.models.creation import count

# Parameters and buffer elements counted with the authors' networks (spec.md, section A). For ir-100 and resnet-34 they
# follow from the layers: see test_network_structure.py for the former; torchvision's resnet34 has 21,284,672 parameters
# without its classifier, to which the linear layer adds 512*512 + 512 and BatchNorm 2*512. MobileFaceNet's paper says
# 0.99M; its table 1 with BatchNorm and PReLU everywhere is 1,003,136. dlib's file holds 5,614,592 numbers, of which two
# per channel of the 29 convolutions are affine and folded: 7 convolutions of 32 channels, 8 of 64, 6 of 128, 8 of 256.
SIZES = {
    "dlib-resnet": (5_614_592 - 2 * (7 * 32 + 8 * 64 + 6 * 128 + 8 * 256), 0),
    "ir-18": (24_025_600, 14_751),
    "ir-34": (34_139_328, 25_911),
    "ir-50": (43_590_848, 38_223),
    "ir-100": (65_156_160, 69_786),
    "ir-tiny": (374_224, 2_226),
    "mobilefacenet": (1_003_136, 19_634),
    "resnet-34": (21_284_672 + 512 * 512 + 512 + 2 * 512, 18_085),
    "sphere-20": (24_501_952, 0),
    "sphere-64": (49_726_656, 0),
}

every_backbone = pytest.mark.parametrize("name", list(BACKBONES))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def faces(count: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny() -> Backbone:
    return create_backbone("ir-tiny", generator=seeded(1))


@every_backbone
def test_sizes_are_as_published_and_as_registered(name: str) -> None:
    backbone = create_backbone(name, device="meta")
    assert count(backbone) == SIZES[name]
    assert backbone.metadata == BACKBONES[name].metadata
    assert (backbone.metadata.parameters, backbone.metadata.buffer_elements) == SIZES[name]
    assert all(tensor.is_meta for tensor in backbone.state_dict().values())


@every_backbone
def test_metadata_says_what_a_reader_needs(name: str) -> None:
    metadata = BACKBONES[name].metadata
    assert metadata.name == name
    assert metadata.channels == "RGB"
    dlibs = ((122.782 / 255, 117.001 / 255, 104.298 / 255), (256 / 255,) * 3)
    assert (metadata.mean, metadata.std) == (dlibs if name == "dlib-resnet" else ((0.5,) * 3, (0.5,) * 3))
    assert metadata.description
    assert metadata.source
    assert metadata.licence


@every_backbone
def test_images_become_embeddings(name: str) -> None:
    backbone = create_backbone(name)
    size = backbone.metadata.image_size
    embedding = backbone.embed(faces(1, size), flip=False)
    assert embedding.shape == (1, backbone.metadata.embedding_size)
    assert embedding.dtype == np.float32
    assert np.isfinite(embedding).all()
    assert embedding.astype(np.float64).std() > 1e-4  # a fresh network already tells its dimensions apart


@every_backbone
def test_weights_come_from_the_generator_alone(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = create_backbone(name, image_size=16, generator=seeded(7)).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = create_backbone(name, image_size=16, generator=seeded(7)).state_dict()
    other = create_backbone(name, image_size=16, generator=seeded(8)).state_dict()
    for key, tensor in first.items():
        assert torch.equal(tensor, again[key]), key
        assert torch.equal(tensor, other[key]) == (tensor.ndim < 2), key
        assert tensor.isfinite().all(), key


@every_backbone
def test_every_parameter_learns_except_the_fixed_ones(name: str) -> None:
    backbone = create_backbone(name, image_size=32).train()
    images = backbone.preprocess(faces(2, 32))
    (backbone(images) * torch.randn(2, backbone.metadata.embedding_size, generator=seeded(0))).sum().backward()
    fixed = {key for key, parameter in backbone.named_parameters() if not parameter.requires_grad}
    assert fixed == ({"features.weight"} if name.startswith("ir-") else set())
    for key, parameter in backbone.named_parameters():
        if key not in fixed:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
            assert parameter.is_contiguous(), key


@every_backbone
@pytest.mark.parametrize(("image_size", "embedding_size"), [(32, 64), (48, 7)])
def test_other_image_and_embedding_sizes(name: str, image_size: int, embedding_size: int) -> None:
    backbone = create_backbone(name, image_size=image_size, embedding_size=embedding_size, device="meta").eval()
    assert backbone(torch.empty(2, 3, image_size, image_size, device="meta")).shape == (2, embedding_size)
    assert (backbone.metadata.image_size, backbone.metadata.embedding_size) == (image_size, embedding_size)
    assert (backbone.metadata.parameters, backbone.metadata.buffer_elements) == count(backbone)


@every_backbone
def test_a_saved_model_comes_back_bit_for_bit(name: str, tmp_path) -> None:
    backbone = create_backbone(name, image_size=16, embedding_size=8, generator=seeded(3))
    save_model(tmp_path / "model.safetensors", backbone)
    loaded = load_model(tmp_path / "model.safetensors")
    assert loaded.metadata == backbone.metadata
    assert not loaded.training
    saved = backbone.state_dict()
    assert list(loaded.state_dict()) == list(saved)
    assert all(torch.equal(tensor, saved[key]) for key, tensor in loaded.state_dict().items())
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in backbone.parameters()]


def test_the_default_seed_is_zero() -> None:
    default, zero = create_backbone("ir-tiny"), create_backbone("ir-tiny", generator=seeded(0))
    assert all(torch.equal(a, b) for a, b in zip(default.parameters(), zero.parameters(), strict=True))


def test_preprocessing_maps_pixels_to_minus_one_and_one(tiny: Backbone) -> None:
    images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    images[0, 1, 2] = (255, 0, 51)
    pixels = tiny.preprocess(images)
    assert pixels.shape == (2, 3, 32, 32)
    assert pixels.dtype == torch.float32
    torch.testing.assert_close(pixels[0, :, 1, 2], torch.tensor([1.0, -1.0, -0.6]))
    assert (pixels[1] == -1).all()
    assert torch.equal(tiny.preprocess(torch.from_numpy(images)), pixels)
    assert images[0, 1, 2].tolist() == [255, 0, 51]


def test_embedding_adds_the_mirrored_image(tiny: Backbone) -> None:
    images = faces(5, 32)
    tiny.eval()
    with torch.no_grad():
        straight = tiny(tiny.preprocess(images)).numpy()
        mirrored = tiny(tiny.preprocess(images[:, :, ::-1])).numpy()
    np.testing.assert_allclose(tiny.embed(images), straight + mirrored, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tiny.embed(images, flip=False), straight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tiny.embed(images), tiny.embed(images[:, :, ::-1]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(tiny.embed(images, normalise=True), axis=1), 1, rtol=1e-5)


def test_embedding_does_not_depend_on_the_batch_size(tiny: Backbone) -> None:
    images = faces(7, 32)
    np.testing.assert_allclose(tiny.embed(images, batch_size=3), tiny.embed(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_embedding_leaves_the_network_as_it_was(tiny: Backbone, training: bool) -> None:
    tiny.train(training)
    before = {key: tensor.clone() for key, tensor in tiny.state_dict().items()}
    tiny.embed(faces(3, 32))
    assert tiny.training is training
    assert all(torch.equal(tensor, before[key]) for key, tensor in tiny.state_dict().items())


def test_embedding_takes_no_images_read_only_arrays_and_tensors(tiny: Backbone) -> None:
    assert tiny.embed(faces(0, 32)).shape == (0, 128)
    images = faces(2, 32)
    expected = tiny.embed(images)
    images.setflags(write=False)
    assert np.array_equal(tiny.embed(images), expected)
    assert np.array_equal(tiny.embed(torch.from_numpy(images.copy())), expected)


@pytest.mark.parametrize(
    ("images", "got"),
    [
        (faces(2, 48), r"got uint8 of shape \(2, 48, 48, 3\)"),
        (faces(2, 32).astype(np.float32), "got float32"),
        (faces(1, 32)[0], r"of shape \(32, 32, 3\)"),
        (faces(1, 32).transpose(0, 3, 1, 2), r"of shape \(1, 3, 32, 32\)"),
        (torch.zeros(1, 32, 32, 3), "got torch.float32"),
        ([[1, 2]], "got list"),
    ],
)
def test_images_it_was_not_made_for_are_refused(tiny: Backbone, images: object, got: str) -> None:
    for use in (tiny.embed, tiny.preprocess):
        with pytest.raises(FedVisageError, match=r"takes uint8 RGB images of shape \(N, 32, 32, 3\).*" + got):
            use(images)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ir-tinny", {}, "unknown backbone 'ir-tinny': did you mean 'ir-tiny'"),
        ("ir-tiny", {"image_size": 50}, "image_size is 50: ir-tiny takes multiples of 16"),
        ("ir-tiny", {"image_size": 0}, "image_size is 0"),
        ("ir-tiny", {"embedding_size": 0}, "embedding_size is 0"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(FedVisageError, match=message):
        create_backbone(name, **options)


def test_a_batch_size_of_zero_is_refused(tiny: Backbone) -> None:
    with pytest.raises(FedVisageError, match="batch_size is 0"):
        tiny.embed(faces(1, 32), batch_size=0)
