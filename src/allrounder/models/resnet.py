"""Residual networks for small images: 3x3 stem of stride 1, no max-pooling, four stages. Parameters have the
names of the public CIFAR networks, so that their weights can be loaded."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, final

from pydantic import Field
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from allrounder.config.fields import Flag, PositiveInt, frozen_config
from allrounder.models.base import Architecture, Shape
from allrounder.models.layers import TensorOrProxy, conv, global_avg_pool, init_uniform_, make_stages

Activation = Literal["relu", "softplus"]
Depths = tuple[int, int, int, int]


@final
class BasicBlock(nn.Module):
    """Residual block: two 3x3 convolutions, each followed by batch-norm, plus a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return F.relu(out, inplace=True)


@final
class ResNet(nn.Module):
    """Stem, four stages of basic blocks, average pooling, linear."""

    last_stage = "layer4"

    def __init__(self, normalise: nn.Module, channels: int, width: int, depths: Depths, classes: int) -> None:
        super().__init__()
        self.normalise = normalise
        self.conv1, self.bn1 = conv(channels, width), nn.BatchNorm2d(width)
        self.layer1, self.layer2, self.layer3, self.layer4 = make_stages(BasicBlock, width, width, depths)
        self.linear = nn.Linear(8 * width, classes)
        init_uniform_(self)

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        x = F.relu(self.bn1(self.conv1(self.normalise(x))), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(global_avg_pool(x))


@final
class PreActBlock(nn.Module):
    """Residual block: two 3x3 convolutions, each preceded by batch-norm and activation, plus a shortcut."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, activation: Activation, raw_shortcut: bool
    ) -> None:
        super().__init__()
        self.raw_shortcut = raw_shortcut
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, stride=stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride))
        self.activation = nn.Softplus() if activation == "softplus" else nn.ReLU(inplace=True)

    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        """A shortcut with weights takes the first activation, or the input if it is raw."""
        out = self.activation(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(x if self.raw_shortcut else out)
        return self.conv2(self.activation(self.bn2(self.conv1(out)))) + shortcut


@final
class PreActResNet(nn.Module):
    """Stem, four stages of two blocks, optional batch-norm and ReLU, average pooling, linear."""

    last_stage = "layer4"

    def __init__(
        self,
        normalise: nn.Module,
        channels: int,
        width: int,
        classes: int,
        *,
        final_norm: bool,
        activation: Activation,
        raw_shortcut: bool,
    ) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> PreActBlock:
            return PreActBlock(inputs, outputs, stride, activation, raw_shortcut)

        self.normalise = normalise
        self.conv1 = conv(channels, width)
        self.layer1, self.layer2, self.layer3, self.layer4 = make_stages(block, width, width, (2, 2, 2, 2))
        self.bn = nn.BatchNorm2d(8 * width) if final_norm else None
        self.linear = nn.Linear(8 * width, classes)
        init_uniform_(self)

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        x = self.layer2(self.layer1(self.conv1(self.normalise(x))))
        x = self.layer4(self.layer3(x))
        if self.bn is not None:
            x = F.relu(self.bn(x), inplace=True)
        return self.linear(global_avg_pool(x))


@frozen_config
class BasicResNet(Architecture):
    """A residual network of basic blocks; subclasses set the blocks per stage."""

    network: ClassVar[type[nn.Module]] = ResNet
    depths: ClassVar[Depths]

    width: Annotated[
        PositiveInt, Field(description="Channels of the first stage; every later stage doubles them.")
    ] = 64

    @override
    def arguments(self, classes: int, shape: Shape) -> dict[str, Any]:
        return {"channels": shape[0], "width": self.width, "depths": self.depths, "classes": classes}


@final
@frozen_config
class ResNet18(BasicResNet):
    """ResNet-18 for small images: 3x3 stem, no max-pooling, blocks 2-2-2-2; 11 million weights.

    Initialisation: U(-b, b) with b = 1 / sqrt(fan_in), batch-norm 1 and 0, as in the public CIFAR code.
    He et al., 2016, Deep residual learning for image recognition.
    """

    depths: ClassVar[Depths] = (2, 2, 2, 2)


@final
@frozen_config
class ResNet34(BasicResNet):
    """ResNet-34 for small images: 3x3 stem, no max-pooling, blocks 3-4-6-3; 21 million weights.

    Initialisation: U(-b, b) with b = 1 / sqrt(fan_in), batch-norm 1 and 0, as in the public CIFAR code.
    He et al., 2016, Deep residual learning for image recognition.
    """

    depths: ClassVar[Depths] = (3, 4, 6, 3)


@final
@frozen_config
class PreActResNet18(Architecture):
    """ResNet-18 for small images with batch-norm and activation before every convolution; 11 million weights.

    Initialisation: U(-b, b) with b = 1 / sqrt(fan_in), batch-norm 1 and 0, as in the public CIFAR code.
    He et al., 2016, Identity mappings in deep residual networks.
    """

    network: ClassVar[type[nn.Module]] = PreActResNet

    width: PositiveInt = 64
    """Channels of the first stage; every later stage doubles them."""
    final_norm: Flag = True
    """Batch-norm and ReLU before the average pooling; Generalist and MSD released versions without."""
    activation: Activation = "relu"
    """Activation in the blocks; E-AT and RAMP used softplus. After the last batch-norm it is always ReLU."""
    raw_shortcut: Flag = False
    """Shortcuts with weights take the input of their block instead of the first activation, as in
    RobustBench. The parameter names are the same, so a file of weights does not show which variant it belongs
    to."""

    @override
    def arguments(self, classes: int, shape: Shape) -> dict[str, Any]:
        variant = {name: getattr(self, name) for name in ("final_norm", "activation", "raw_shortcut")}
        return {"channels": shape[0], "width": self.width, "classes": classes, **variant}
