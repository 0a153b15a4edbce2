"""Network architectures, and external networks and weights. A new architecture is one line in `MODELS`."""

from __future__ import annotations

from allrounder.models.base import CustomModel, ModelSpec
from allrounder.models.ensemble import EnsembleModel
from allrounder.models.resnet import PreActResNet18, ResNet18, ResNet34
from allrounder.models.resnet_imagenet import ResNet50, WideResNet50
from allrounder.models.small_cnn import SmallCnn
from allrounder.models.wide_resnet import WideResNet

MODELS: dict[str, type[ModelSpec]] = {
    "small-cnn": SmallCnn,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "preactresnet18": PreActResNet18,
    "wrn": WideResNet,
    "resnet50": ResNet50,
    "wrn-50-2": WideResNet50,
    "ensemble": EnsembleModel,
    "python": CustomModel,
}

__all__ = ["MODELS", "CustomModel", "ModelSpec"]
