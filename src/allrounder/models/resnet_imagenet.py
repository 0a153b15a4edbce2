"""Residual networks for large images: 7x7 stem of stride 2, max-pooling, bottleneck blocks 3-4-6-3. Parameter
names and strides are those of the public ImageNet networks, so that their weights can be loaded."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, final

from pydantic import Field
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from allrounder.config.fields import PositiveInt, frozen_config
from allrounder.models.base import Architecture, Shape
from allrounder.models.layers import TensorOrProxy, conv, global_avg_pool, init_normal_, make_stages

EXPANSION = 4


@final
class Bottleneck(nn.Module):
    """Residual block: 1x1, 3x3 (strided) and 1x1 convolutions, each with batch-norm, plus a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int) -> None:
        super().__init__()
        inner = outputs // EXPANSION * widen
        self.conv1, self.bn1 = conv(inputs, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv(inner, outputs, 1), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out)) + (x if self.downsample is None else self.downsample(x))
        return F.relu(out, inplace=True)


@final
class ImageNetResNet(nn.Module):
    """Stem, max-pooling, four stages of bottlenecks, average pooling, linear."""

    last_stage = "layer4"

    def __init__(self, normalise: nn.Module, channels: int, width: int, widen: int, classes: int) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> Bottleneck:
            return Bottleneck(inputs, outputs, stride, widen)

        wide = EXPANSION * width
        self.normalise = normalise
        self.conv1, self.bn1 = conv(channels, width, 7, 2), nn.BatchNorm2d(width)
        self.layer1, self.layer2, self.layer3, self.layer4 = make_stages(block, width, wide, (3, 4, 6, 3))
        self.fc = nn.Linear(8 * wide, classes)
        init_normal_(self)

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        x = F.relu(self.bn1(self.conv1(self.normalise(x))), inplace=True)
        x = self.layer2(self.layer1(F.max_pool2d(x, 3, stride=2, padding=1)))
        return self.fc(global_avg_pool(self.layer4(self.layer3(x))))


@frozen_config
class BottleneckResNet(Architecture):
    """A residual network of bottleneck blocks; subclasses set the width inside of blocks."""

    network: ClassVar[type[nn.Module]] = ImageNetResNet
    widen: ClassVar[int]

    width: Annotated[
        PositiveInt, Field(description="Channels of the stem; the stages have 4, 8, 16 and 32 times as many.")
    ] = 64

    @override
    def arguments(self, classes: int, shape: Shape) -> dict[str, Any]:
        return {"channels": shape[0], "width": self.width, "widen": self.widen, "classes": classes}


@final
@frozen_config
class ResNet50(BottleneckResNet):
    """ResNet-50 for large images: 7x7 stem, max-pooling, bottlenecks; 26 million weights.

    Initialisation: convolutions of size s N(0, 2 / (s * s * c_out)), batch-norm 1 and 0, linear U(-b, b) with
    b = 1 / sqrt(fan_in).
    He et al., 2016, Deep residual learning for image recognition.
    """

    widen: ClassVar[int] = 1


@final
@frozen_config
class WideResNet50(BottleneckResNet):
    """ResNet-50 for large images with bottlenecks twice as wide inside, WRN-50-2; 69 million weights.

    Initialisation: convolutions of size s N(0, 2 / (s * s * c_out)), batch-norm 1 and 0, linear U(-b, b) with
    b = 1 / sqrt(fan_in).
    Zagoruyko and Komodakis, 2016, Wide residual networks.
    """

    widen: ClassVar[int] = 2
