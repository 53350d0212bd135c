"""Frame headers read here say what the library's reader says, and no claim of size gets past them."""

from __future__ import annotations

import io
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from simplejpeg import decode_jpeg_header

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import decode, jpeg_frame


def jpeg(width: int, height: int, mode: str = "RGB", **options: object) -> bytes:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, len(mode)), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels if len(mode) > 1 else pixels[..., 0], mode).save(out, "JPEG", **options)
    return out.getvalue()


@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    mode=st.sampled_from(["RGB", "L", "CMYK"]),
    progressive=st.booleans(),
    comment=st.binary(max_size=50),
)
def test_the_frame_is_what_the_library_reads(
    width: int, height: int, mode: str, progressive: bool, comment: bytes
) -> None:
    data = jpeg(width, height, mode, progressive=progressive, comment=comment)
    assert jpeg_frame(data) == (height, width, len(mode))
    assert decode_jpeg_header(data)[:2] == (height, width)
    assert decode(data).shape == (height, width, 3)


def claiming(data: bytes, height: int, width: int) -> bytes:
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


@pytest.mark.parametrize("fill", [b"", b"\xff"], ids=["read here", "read by the library"])
def test_a_small_file_that_claims_to_be_huge_is_refused_before_it_is_decoded(fill: bytes) -> None:
    """A fill byte before a marker is legal and unusual: such a header is left to the library."""
    data = claiming(jpeg(8, 8), 20_000, 20_000)
    data = data[:2] + fill + data[2:]
    assert (jpeg_frame(data) is None) == bool(fill)
    with pytest.raises(FedVisageError, match="more than"):
        decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_behind_a_jpegs_beginning_are_an_image_or_our_error(rest: bytes) -> None:
    with suppress(FedVisageError):
        assert decode(b"\xff\xd8" + rest).ndim == 3
