"""Residual networks for small images: 3x3 stem of stride 1, no max-pooling, four stages.

Parameters are named as in the public CIFAR networks, so that their weights load.
"""

from __future__ import annotations

from typing import Literal, final

from torch import nn
from torch.nn import functional as F

from allrounder.config.fields import Count, Flag, value
from allrounder.models.base import Architecture, Shape
from allrounder.models.layers import Flow, conv, pool, stage, uniform_

Activation = Literal["relu", "softplus"]
Depths = tuple[int, int, int, int]


@final
class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each followed by batch-norm, added to a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Flow) -> Flow:
        """One residual step."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return F.relu(out, inplace=True)


@final
class ResNet(nn.Module):
    """Stem, four stages of basic blocks of width 1, 2, 4 and 8 times the first, average, linear."""

    last_stage = "layer4"

    def __init__(self, normalise: nn.Module, channels: int, width: int, depths: Depths, classes: int) -> None:
        super().__init__()
        self.normalise = normalise
        self.conv1, self.bn1 = conv(channels, width), nn.BatchNorm2d(width)
        self.layer1 = stage(BasicBlock, width, width, depths[0], 1)
        self.layer2 = stage(BasicBlock, width, 2 * width, depths[1], 2)
        self.layer3 = stage(BasicBlock, 2 * width, 4 * width, depths[2], 2)
        self.layer4 = stage(BasicBlock, 4 * width, 8 * width, depths[3], 2)
        self.linear = nn.Linear(8 * width, classes)
        uniform_(self)

    def forward(self, x: Flow) -> Flow:
        """Images to logits."""
        x = F.relu(self.bn1(self.conv1(self.normalise(x))), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(pool(x))


@final
class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each preceded by batch-norm and activation, added to a shortcut."""

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

    def forward(self, x: Flow) -> Flow:
        """One residual step; a shortcut with weights starts after the first activation, if it is not raw."""
        out = self.activation(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(x if self.raw_shortcut else out)
        out = self.conv2(self.activation(self.bn2(self.conv1(out))))
        return out + shortcut


@final
class PreActResNet(nn.Module):
    """Stem, four stages of two pre-activation blocks, batch-norm and ReLU if asked for, average, linear."""

    last_stage = "layer4"

    def __init__(self, spec: PreActResNet18, normalise: nn.Module, channels: int, classes: int) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> PreActBlock:
            return PreActBlock(inputs, outputs, stride, spec.activation, spec.raw_shortcut)

        width = spec.width
        self.normalise = normalise
        self.conv1 = conv(channels, width)
        self.layer1 = stage(block, width, width, 2, 1)
        self.layer2 = stage(block, width, 2 * width, 2, 2)
        self.layer3 = stage(block, 2 * width, 4 * width, 2, 2)
        self.layer4 = stage(block, 4 * width, 8 * width, 2, 2)
        self.bn = nn.BatchNorm2d(8 * width) if spec.final_norm else None
        self.linear = nn.Linear(8 * width, classes)
        uniform_(self)

    def forward(self, x: Flow) -> Flow:
        """Images to logits."""
        x = self.layer2(self.layer1(self.conv1(self.normalise(x))))
        x = self.layer4(self.layer3(x))
        if self.bn is not None:
            x = F.relu(self.bn(x), inplace=True)
        return self.linear(pool(x))


@final
@value
class ResNet18(Architecture):
    """ResNet-18 for small images: 3x3 stem, no max-pooling, blocks 2-2-2-2; 11 million weights.

    Initialisation: U(-b, b) with b = 1 / sqrt(fan_in), batch-norm 1 and 0, as in the public CIFAR code.
    He et al., 2016, Deep residual learning for image recognition.
    """

    width: Count = 64
    """Channels of the first stage; each later stage has twice as many as the one before."""

    def network(self, normalise: nn.Module, classes: int, shape: Shape) -> nn.Module:
        """The network behind its normalisation."""
        return ResNet(normalise, shape[0], self.width, (2, 2, 2, 2), classes)


@final
@value
class ResNet34(Architecture):
    """ResNet-34 for small images: 3x3 stem, no max-pooling, blocks 3-4-6-3; 21 million weights.

    Initialisation: U(-b, b) with b = 1 / sqrt(fan_in), batch-norm 1 and 0, as in the public CIFAR code.
    He et al., 2016, Deep residual learning for image recognition.
    """

    width: Count = 64
    """Channels of the first stage; each later stage has twice as many as the one before."""

    def network(self, normalise: nn.Module, classes: int, shape: Shape) -> nn.Module:
        """The network behind its normalisation."""
        return ResNet(normalise, shape[0], self.width, (3, 4, 6, 3), classes)


@final
@value
class PreActResNet18(Architecture):
    """ResNet-18 for small images with batch-norm and activation before every convolution; 11 million weights.

    Initialisation: U(-b, b) with b = 1 / sqrt(fan_in), batch-norm 1 and 0, as in the public CIFAR code.
    He et al., 2016, Identity mappings in deep residual networks.
    """

    width: Count = 64
    """Channels of the first stage; each later stage has twice as many as the one before."""
    final_norm: Flag = True
    """Batch-norm and ReLU before the average. The copies that Generalist and MSD released have none."""
    activation: Activation = "relu"
    """Inside the blocks; E-AT and RAMP trained with softplus. After the last batch-norm it is always ReLU."""
    raw_shortcut: Flag = False
    """Shortcuts with weights start before the first batch-norm of their block, as in RobustBench's copy. The
    names of the weights are the same for both, so that a file does not tell which one it is of."""

    def network(self, normalise: nn.Module, classes: int, shape: Shape) -> nn.Module:
        """The network behind its normalisation."""
        return PreActResNet(self, normalise, shape[0], classes)
