"""From encoded bytes to pixels and back; whatever the bytes are, the result is an image or an error of ours.

An image's size is read from its header before any pixel is decoded, so that a small file that claims to be huge costs
nothing. Only still-image formats that face data comes in are tried. JPEG is decoded by simplejpeg, twice as fast as
Pillow to the same pixels; what it does not like, Pillow decides on. Both let go of the interpreter lock.
"""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from simplejpeg import decode_jpeg, decode_jpeg_header

from fedvisage.core.errors import FedVisageError

Pixels = NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP")
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".pnm", ".webp"})
MOST_PIXELS = 64_000_000
MOST_BYTES = 256_000_000
_ORIENTATION = 0x0112
CMYK = 4
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
_SEGMENTS = frozenset({0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})
"""Parts of a JPEG that may come before its frame: tables, restart interval, comment, application's own."""


def open_image(data: bytes) -> Image.Image:
    """The image in these bytes with its header read; refused where it claims too many pixels."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise FedVisageError(f"more than {MOST_PIXELS:,} pixels") from None
    except Exception as error:  # a damaged header may raise anything
        raise FedVisageError(f"no image: {_words(error)}") from None
    if image.width * image.height > MOST_PIXELS:
        raise FedVisageError(f"{image.width}x{image.height}: more than {MOST_PIXELS:,} pixels")
    return image


def pixels_of(image: Image.Image) -> Pixels:
    """The pixels (H, W, 3) RGB of an opened image."""
    try:
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except Exception as error:  # so may damaged pixels
        raise FedVisageError(f"damaged image: {_words(error)}") from None


def decode(data: bytes) -> Pixels:
    """The pixels (H, W, 3) RGB of an encoded image as it is stored."""
    if data[:2] == b"\xff\xd8":
        try:
            height, width, colours = jpeg_frame(data) or _declared(data)
            if height * width <= MOST_PIXELS and colours != CMYK:
                pixels: Pixels = decode_jpeg(data)
                return pixels
        except ValueError:
            pass
    return pixels_of(open_image(data))


def jpeg_frame(data: bytes) -> tuple[int, int, int] | None:
    """Height, width and colours that a JPEG's frame header declares; None where something unusual comes before it.

    The library's own reader of headers takes a fifth as long as decoding a face.
    """
    at = 2
    while at + 10 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in _FRAMES:
            height, width = (int.from_bytes(data[start : start + 2], "big") for start in (at + 5, at + 7))
            return height, width, data[at + 9]
        if marker not in _SEGMENTS or length < 2:
            return None
        at += 2 + length
    return None


def _declared(data: bytes) -> tuple[int, int, int]:
    height, width, colours, _ = decode_jpeg_header(data)
    return height, width, CMYK if colours == "CMYK" else 3


def may_be_turned(data: bytes) -> bool:
    """Whether an encoded image says something of its camera, which comes at its beginning."""
    return data.find(b"eXIf" if data[:1] == b"\x89" else b"Exif", 0, 1024) >= 0


def upright(data: bytes) -> Pixels:
    """The pixels (H, W, 3) RGB of an encoded image, turned as the camera was held where it says so."""
    return pixels_of(turned(open_image(data))) if may_be_turned(data) else decode(data)


def turned(image: Image.Image) -> Image.Image:
    """The image as the camera was held, where it says so."""
    try:
        if image.getexif().get(_ORIENTATION, 1) == 1:
            return image
        return ImageOps.exif_transpose(image)
    except Exception as error:
        raise FedVisageError(f"damaged image: {_words(error)}") from None


def fit(pixels: Pixels, size: int) -> Pixels:
    """The central square of an image (H, W, 3), scaled to (size, size, 3)."""
    height, width = pixels.shape[:2]
    if height == width == size:
        return pixels
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(np.ascontiguousarray(pixels[top : top + side, left : left + side]))
    return np.asarray(square.resize((size, size), Image.Resampling.LANCZOS, reducing_gap=2.0))


def encode(pixels: Pixels, kind: Literal["JPEG", "PNG"] = "JPEG") -> bytes:
    """An image (H, W, 3) as JPEG of quality 95 with full colour, or as PNG."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, quality=95, subsampling=0)
    return out.getvalue()


def _words(error: Exception) -> str:
    """The first line of an error, without the address of the object that Pillow likes to print."""
    text = str(error).partition("\n")[0]
    return "cannot identify image" if text.startswith("cannot identify image") else text or type(error).__name__
