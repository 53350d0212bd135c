"""A contact sheet: images in a grid, a row per identity, to be looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedvisage.core.errors import FedVisageError


def contact_sheet(
    images: NDArray[np.uint8],
    labels: Sequence[str] | None = None,
    *,
    gap: int = 2,
    background: tuple[int, int, int] = (255, 255, 255),
) -> Image.Image:
    """Images (rows, columns, H, W, 3) on one sheet, `gap` pixels apart, each row's label on its left."""
    if images.ndim != 5 or images.shape[-1] != 3 or images.dtype != np.uint8 or 0 in images.shape:
        raise FedVisageError(
            f"a contact sheet takes uint8 images of shape (rows, columns, H, W, 3), not {images.dtype} {images.shape}"
        )
    rows, columns, height, width, _ = images.shape
    if labels is not None and len(labels) != rows:
        raise FedVisageError(f"a contact sheet needs a label per row: {len(labels)} labels for {rows} rows")
    if gap < 0:
        raise FedVisageError(f"the gap of a contact sheet must be 0 or more pixels, not {gap}")
    font = ImageFont.load_default(size=max(8.0, min(14.0, height / 4)))
    margin = 0
    if labels is not None:
        margin = max(int(np.ceil(font.getlength(label))) for label in labels) + 2 * max(gap, 2)
    size = (margin + columns * (width + gap) + gap, rows * (height + gap) + gap)
    sheet = Image.new("RGB", size, background)
    ink = ImageDraw.Draw(sheet)
    dark = (0, 0, 0) if sum(background) > 382 else (255, 255, 255)
    for row in range(rows):
        top = gap + row * (height + gap)
        for column in range(columns):
            sheet.paste(Image.fromarray(images[row, column]), (margin + gap + column * (width + gap), top))
        if labels is not None:
            ink.text((max(gap, 2), top + height // 2), labels[row], fill=dark, font=font, anchor="lm")
    return sheet
