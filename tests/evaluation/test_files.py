"""Embeddings files: written and read in blocks, plain safetensors, refused when damaged."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation.files import About, EmbeddingsFile, is_embeddings_file, write_embeddings
from fedvisage.evaluation.streaming import UnitBlocks

ABOUT = About("ir-tiny", "ab" * 32, True, "faces", "cd" * 32, ("ann", "bob"), {"note": "hello"})


def some(count=10, width=4):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, width)).astype(np.float32), np.arange(count) % 2


@pytest.fixture
def file(tmp_path):
    vectors, labels = some()
    path = tmp_path / "embeddings.safetensors"
    write_embeddings(path, iter([vectors[:7], vectors[7:]]), vectors.shape, labels, ABOUT)
    return path


def test_what_is_written_is_read_back_in_slices(file):
    vectors, labels = some()
    opened = EmbeddingsFile(file)
    assert opened.shape == (10, 4)
    assert opened.about == ABOUT
    assert np.array_equal(opened.labels, labels)
    for part in (slice(0, 10), slice(3, 8), slice(8, 99), slice(5, 5)):
        assert np.array_equal(opened[part], vectors[part])
    assert np.array_equal(
        UnitBlocks("file", opened, 3, np.float32).all(), UnitBlocks("it", vectors, 9, np.float32).all()
    )


def test_it_is_plain_safetensors(file):
    vectors, labels = some()
    tensors = load_file(file)
    assert np.array_equal(tensors["embeddings"], vectors)
    assert np.array_equal(tensors["labels"], labels)
    assert is_embeddings_file(file)


def test_a_writer_that_breaks_its_promise_leaves_nothing_behind(tmp_path):
    vectors, labels = some()
    path = tmp_path / "embeddings.safetensors"
    for blocks, words in [
        ([vectors[:4]], "4 embeddings were made where 10 were promised"),
        ([vectors, vectors], "does not fit"),
        ([vectors[:, :2]], "does not fit"),
    ]:
        with pytest.raises(FedVisageError, match=words):
            write_embeddings(path, blocks, (10, 4), labels, ABOUT)
    with pytest.raises(FedVisageError, match="3 labels for 10 embeddings"):
        write_embeddings(path, [vectors], (10, 4), labels[:3], ABOUT)
    assert list(tmp_path.iterdir()) == []


@cases(150)
@given(st.data())
def test_damaged_files_are_refused_and_never_crash(tmp_path_factory, data):
    vectors, labels = some()
    path = tmp_path_factory.mktemp("damaged") / "embeddings.safetensors"
    write_embeddings(path, [vectors], vectors.shape, labels, ABOUT)
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        broken = bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        place = data.draw(st.integers(0, 400))
        whole[place] = data.draw(st.integers(0, 255))
        broken = bytes(whole)
    path.write_bytes(broken)
    with suppress(FedVisageError):
        opened = EmbeddingsFile(path)
        assert opened[0 : len(opened)].shape == opened.shape


def test_other_files_are_told_apart(tmp_path):
    for name, content in (("text", b"hello"), ("empty", b""), ("numbers", b"\xff" * 64)):
        path = tmp_path / name
        path.write_bytes(content)
        assert not is_embeddings_file(path)
        with pytest.raises(FedVisageError, match=r"no embeddings file|cut short"):
            EmbeddingsFile(path)
    assert not is_embeddings_file(tmp_path / "nothing")
    with pytest.raises(FedVisageError, match="cannot read the embeddings"):
        EmbeddingsFile(tmp_path / "nothing")
