"""The `nvflare` extra: whether it is there, and what to do where it is not."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fedvisage.core.errors import FedVisageError

VERSION = "2.9.0"


def require_nvflare() -> None:
    """Say how to install NVFlare where it is missing, or which version is needed."""
    how = "install it with: pip install 'fedvisage[nvflare]'"
    try:
        found = version("nvflare")
    except PackageNotFoundError:
        raise FedVisageError(f"real hosts need NVIDIA FLARE, which is not installed; {how}") from None
    if found != VERSION:
        raise FedVisageError(f"real hosts need NVIDIA FLARE {VERSION}, and {found} is installed; {how}")
