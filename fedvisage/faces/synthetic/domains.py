"""Where and with what a picture is taken, as distributions: the shift that domain adaptation has to bridge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Domain:
    """Distribution of skin, light and camera. Angles are in radians; colours and light are linear, 1 is white."""

    summary: str
    melanin: tuple[float, float] = (0.36, 0.25)  # of the skin, mean and deviation: 0 very light, 1 very dark
    yaw: float = 0.36  # deviation of the pose
    pitch: float = 0.16
    side_light: float = 0.75  # deviation of the key light's azimuth
    high_light: tuple[float, float] = (0.45, 0.30)  # its elevation, mean and deviation
    key: tuple[float, float] = (1.15, 0.28)  # strength of the key light
    ambient: tuple[float, float] = (0.42, 0.13)  # strength of the light from everywhere
    warmth: tuple[float, float] = (0.02, 0.16)  # of the key light and white balance: positive is orange, negative blue
    saturation: float = 1.0  # of the camera; 0 is a single channel
    exposure: tuple[float, float] = (1.0, 0.17)
    blur: float = 0.35  # share of images out of focus
    noise: tuple[float, float] = (0.012, 0.03)  # deviation of the sensor noise: least, and the range above it
    compressed: float = 0.45  # share of images compressed
    coarseness: tuple[float, float] = (0.015, 0.06)  # of the compression: quantisation step, least and range above it
    glasses: float = 1.0  # multiplies how often glasses are worn
    background: float = 1.0  # brightness of what is behind


DEFAULT_DOMAIN = "daylight"

DOMAINS: Mapping[str, Domain] = MappingProxyType(
    {
        "daylight": Domain("varied skin under varied neutral light, a decent camera"),
        "lamplight": Domain(
            "dark skin reflectance under warm, low and one-sided light, a noisy sensor",
            melanin=(0.78, 0.14),
            side_light=1.0,
            high_light=(0.15, 0.4),
            key=(1.15, 0.3),
            ambient=(0.16, 0.07),
            warmth=(0.42, 0.14),
            exposure=(0.95, 0.2),
            noise=(0.03, 0.05),
            background=0.35,
        ),
        "webcam": Domain(
            "cool light from a screen, pale colours, out of focus and strongly compressed",
            high_light=(-0.1, 0.3),
            key=(0.9, 0.2),
            ambient=(0.5, 0.12),
            warmth=(-0.24, 0.1),
            saturation=0.55,
            exposure=(1.1, 0.2),
            blur=0.85,
            noise=(0.02, 0.04),
            compressed=0.95,
            coarseness=(0.05, 0.08),
            background=0.6,
        ),
        "infrared": Domain(
            "a single-channel camera beside its own lamp: bright skin whatever its melanin, dark surroundings",
            melanin=(0.12, 0.08),
            side_light=0.2,
            high_light=(0.05, 0.1),
            key=(1.45, 0.2),
            ambient=(0.1, 0.04),
            warmth=(0.0, 0.0),
            saturation=0.0,
            exposure=(1.0, 0.15),
            noise=(0.03, 0.05),
            background=0.15,
        ),
    }
)
