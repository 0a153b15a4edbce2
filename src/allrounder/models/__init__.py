from allrounder.models.base import Given, ModelSpec
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
    "given": Given,
}

__all__ = ["MODELS", "Given", "ModelSpec"]
