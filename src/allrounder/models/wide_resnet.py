"""Wide residual networks for small images, with the parameter names of the public code of TRADES."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar, Literal, final

from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from allrounder.config.fields import PositiveInt, Share, frozen_config
from allrounder.models.base import Architecture, Shape
from allrounder.models.layers import TensorOrProxy, conv, global_avg_pool, init_normal_, make_stages

FIXED_LAYERS = {"usual": 4, "papers": 2}
"""Layers outside the blocks. The three stages have (depth - fixed) / 6 blocks of two convolutions each."""


@final
class WideBlock(nn.Module):
    """Residual block: two 3x3 convolutions after batch-norm and ReLU, dropout in between, plus a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, stride=stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        # Named as in the public weights.
        self.convShortcut = None if inputs == outputs and stride == 1 else conv(inputs, outputs, 1, stride)

    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        """A shortcut with weights takes the first activation."""
        out = F.relu(self.bn1(x), inplace=True)
        shortcut = x if self.convShortcut is None else self.convShortcut(out)
        out = F.relu(self.bn2(self.conv1(out)), inplace=True)
        return self.conv2(self.dropout(out)) + shortcut


@final
class WideResNetNetwork(nn.Module):
    """Stem, three stages, batch-norm and ReLU, average pooling, linear."""

    last_stage = "block3"

    def __init__(
        self,
        normalise: nn.Module,
        channels: int,
        width: int,
        widen: int,
        blocks: int,
        classes: int,
        dropout: float,
    ) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> WideBlock:
            return WideBlock(inputs, outputs, stride, dropout)

        wide = width * widen
        self.normalise = normalise
        self.conv1 = conv(channels, width)
        stages = make_stages(block, width, wide, (blocks,) * 3)
        # Named as in the public weights: block1.layer.0 and so on.
        self.block1, self.block2, self.block3 = (nn.Sequential(OrderedDict(layer=stage)) for stage in stages)
        self.bn1 = nn.BatchNorm2d(4 * wide)
        self.fc = nn.Linear(4 * wide, classes)
        init_normal_(self)
        nn.init.zeros_(self.fc.bias)

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        x = self.block3(self.block2(self.block1(self.conv1(self.normalise(x)))))
        return self.fc(global_avg_pool(F.relu(self.bn1(x), inplace=True)))


@final
@frozen_config
class WideResNet(Architecture):
    """Wide residual network for small images, WRN-depth-widen; WRN-34-10 has 46 million weights.

    Each of the three stages has (depth - 4) / 6 blocks. The "WRN-32-10" of the Generalist papers is known
    elsewhere as WRN-34-10: their code computes (depth - 2) / 6, and both give 5 blocks. Initialisation:
    convolutions of size s N(0, 2 / (s * s * c_out)), batch-norm 1 and 0, linear weights U(-b, b) with b = 1 /
    sqrt(fan_in), linear bias 0. Zagoruyko and Komodakis, 2016, Wide residual networks.
    """

    network: ClassVar[type[nn.Module]] = WideResNetNetwork

    depth: PositiveInt = 34
    """Number of layers: 4 more than a multiple of 6 (2 more for counting = "papers")."""
    widen: PositiveInt = 10
    """Factor on the width of the stages of a plain residual network."""
    width: PositiveInt = 16
    """Channels of the stem; the stages have widen, 2 * widen and 4 * widen times as many."""
    dropout: Share = 0.0
    """Dropout probability between the two convolutions of a block."""
    counting: Literal["usual", "papers"] = "usual"
    """Blocks per stage: (depth - 4) / 6, or (depth - 2) / 6 as in the code of the Generalist papers."""

    def __post_init__(self) -> None:
        self.num_blocks()

    def num_blocks(self) -> int:
        """Return the blocks per stage; raises ValueError if the depth does not give a whole number."""
        fixed = FIXED_LAYERS[self.counting]
        blocks, remainder = divmod(self.depth - fixed, 6)
        if remainder or blocks < 1:
            valid = " or ".join(map(str, sorted({fixed + 6 * max(n, 1) for n in (blocks, blocks + 1)})))
            raise ValueError(
                f"depth {self.depth} gives (depth - {fixed}) / 6 = {(self.depth - fixed) / 6:.2f} blocks "
                f'(counting = "{self.counting}"), expected a whole number; use {valid}'
            )
        return blocks

    @override
    def arguments(self, classes: int, shape: Shape) -> dict[str, Any]:
        size = {"width": self.width, "widen": self.widen, "blocks": self.num_blocks()}
        return {"channels": shape[0], **size, "classes": classes, "dropout": self.dropout}
