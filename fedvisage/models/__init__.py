"""Backbones: networks from face images to embeddings, each registered with its metadata."""

from fedvisage.models import iresnet as _iresnet  # noqa: F401  (registers its networks)
from fedvisage.models.backbone import Backbone, BackboneMetadata
from fedvisage.models.creation import BACKBONES, Architecture, create_backbone

__all__ = ["BACKBONES", "Architecture", "Backbone", "BackboneMetadata", "create_backbone"]
