"""Backbones: networks from face images to embeddings, each registered with its metadata."""

from fedvisage.models.backbone import Backbone, BackboneMetadata, Stage
from fedvisage.models.centres import (
    LEAST_PEOPLE,
    NO_CENTRE,
    OF_PAIRS,
    Centre,
    centres_of,
    check_centre_name,
)
from fedvisage.models.creation import BACKBONES, Architecture, create_backbone, register_backbone
from fedvisage.models.dlib_resnet import DlibResNet
from fedvisage.models.files import load_arcface_torch, load_model, read_model_metadata, save_model
from fedvisage.models.iresnet import IResNet
from fedvisage.models.mobilefacenet import MobileFaceNet
from fedvisage.models.personal import personalised
from fedvisage.models.pretrained import MODEL_FILES, ModelFile, open_model
from fedvisage.models.resnet import ResNet
from fedvisage.models.sphere import Sphere

__all__ = [
    "BACKBONES",
    "LEAST_PEOPLE",
    "MODEL_FILES",
    "NO_CENTRE",
    "OF_PAIRS",
    "Architecture",
    "Backbone",
    "BackboneMetadata",
    "Centre",
    "DlibResNet",
    "IResNet",
    "MobileFaceNet",
    "ModelFile",
    "ResNet",
    "Sphere",
    "Stage",
    "centres_of",
    "check_centre_name",
    "create_backbone",
    "load_arcface_torch",
    "load_model",
    "open_model",
    "personalised",
    "read_model_metadata",
    "register_backbone",
    "save_model",
]
