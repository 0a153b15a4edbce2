"""A network small enough for adversarial training on a CPU."""

from __future__ import annotations

from typing import Any, ClassVar, final

from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from allrounder.config.fields import PositiveInt, frozen_config
from allrounder.models.base import Architecture, Shape
from allrounder.models.layers import AdaptiveAvgPool, TensorOrProxy, conv, init_uniform_


@final
class SmallCnnNetwork(nn.Module):
    """Four convolutions, each with batch-norm and ReLU, then 2x2 average pooling and a linear layer."""

    last_stage = "bn4"

    def __init__(self, normalise: nn.Module, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.normalise = normalise
        self.conv1, self.bn1 = conv(channels, width, stride=2), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, 2 * width, stride=2), nn.BatchNorm2d(2 * width)
        self.conv3, self.bn3 = conv(2 * width, 4 * width, stride=2), nn.BatchNorm2d(4 * width)
        self.conv4, self.bn4 = conv(4 * width, 4 * width), nn.BatchNorm2d(4 * width)
        self.pool = AdaptiveAvgPool(2)
        self.linear = nn.Linear(16 * width, classes)
        init_uniform_(self)

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        x = F.relu(self.bn1(self.conv1(self.normalise(x))), inplace=True)
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        x = F.relu(self.bn3(self.conv3(x)), inplace=True)
        x = F.relu(self.bn4(self.conv4(x)), inplace=True)
        return self.linear(self.pool(x).flatten(1))


@final
@frozen_config
class SmallCnn(Architecture):
    """Four 3x3 convolutions with batch-norm, fast on a CPU: 1.14 million MACs for a 28x28 grey image.

    The first three convolutions have stride 2. The 2x2 average pooling before the linear layer keeps some
    spatial information. Initialisation: U(-b, b) with b = 1 / sqrt(fan_in), batch-norm 1 and 0.
    """

    network: ClassVar[type[nn.Module]] = SmallCnnNetwork

    width: PositiveInt = 16
    """Channels of the first convolution; the others have 2, 4 and 4 times as many."""

    @override
    def arguments(self, classes: int, shape: Shape) -> dict[str, Any]:
        return {"channels": shape[0], "width": self.width, "classes": classes}
