"""Wide residual networks for small images.

Parameters are named as in the public code of TRADES and its relatives, so that their weights load.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, final

from torch import nn
from torch.nn import functional as F

from allrounder.config.fields import Count, Share, value
from allrounder.models.base import Architecture, Shape
from allrounder.models.layers import Flow, conv, normal_, pool, stage

FIXED_LAYERS = {"usual": 4, "papers": 2}
"""What is taken off the depth before it is divided into three stages of two convolutions a block."""


@final
class WideBlock(nn.Module):
    """Two 3x3 convolutions, each preceded by batch-norm and ReLU, dropout between, added to a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, stride=stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        # The public weights use this name.
        self.convShortcut = None if inputs == outputs and stride == 1 else conv(inputs, outputs, 1, stride)

    def forward(self, x: Flow) -> Flow:
        """One residual step; a shortcut with weights starts after the first activation."""
        out = F.relu(self.bn1(x), inplace=True)
        shortcut = x if self.convShortcut is None else self.convShortcut(out)
        out = F.relu(self.bn2(self.conv1(out)), inplace=True)
        return self.conv2(self.dropout(out)) + shortcut


@final
class Wide(nn.Module):
    """Stem, three stages, batch-norm and ReLU, average, linear."""

    last_stage = "block3"

    def __init__(self, spec: WideResNet, normalise: nn.Module, channels: int, classes: int) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> WideBlock:
            return WideBlock(inputs, outputs, stride, spec.dropout)

        def group(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            return nn.Sequential(OrderedDict(layer=stage(block, inputs, outputs, spec.num_blocks(), stride)))

        width, wide = spec.width, spec.width * spec.widen
        self.normalise = normalise
        self.conv1 = conv(channels, width)
        self.block1 = group(width, wide, 1)
        self.block2 = group(wide, 2 * wide, 2)
        self.block3 = group(2 * wide, 4 * wide, 2)
        self.bn1 = nn.BatchNorm2d(4 * wide)
        self.fc = nn.Linear(4 * wide, classes)
        normal_(self)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Flow) -> Flow:
        """Images to logits."""
        x = self.block3(self.block2(self.block1(self.conv1(self.normalise(x)))))
        return self.fc(pool(F.relu(self.bn1(x), inplace=True)))


@final
@value
class WideResNet(Architecture):
    """Wide residual network for small images, WRN-depth-widen; WRN-34-10 has 46 million weights.

    Each of the three stages has (depth - 4) / 6 blocks. The Generalist papers' "WRN-32-10" is what everyone
    else calls WRN-34-10: their code counts (depth - 2) / 6, and both give 5 blocks.
    Initialisation: convolutions of size s N(0, 2 / (s * s * c_out)), batch-norm 1 and 0, linear weights
    U(-b, b) with b = 1 / sqrt(fan_in), linear bias 0.
    Zagoruyko and Komodakis, 2016, Wide residual networks.
    """

    depth: Count = 34
    """Layers by the usual count: 4 more than a multiple of 6."""
    widen: Count = 10
    """How many times wider the stages are than in a plain residual network."""
    width: Count = 16
    """Channels of the stem; the stages have `widen` times 1, 2 and 4 times as many."""
    dropout: Share = 0.0
    """Share of activations dropped between the two convolutions of a block."""
    counting: Literal["usual", "papers"] = "usual"
    """How blocks are counted from the depth: (depth - 4) / 6, or (depth - 2) / 6 as in the papers' code."""

    def __post_init__(self) -> None:
        self.num_blocks()

    def num_blocks(self) -> int:
        """Blocks of every stage. Raises ValueError for a depth that gives no whole number of them."""
        fixed = FIXED_LAYERS[self.counting]
        blocks, rest = divmod(self.depth - fixed, 6)
        if rest or blocks < 1:
            near = sorted({fixed + 6 * max(n, 1) for n in (blocks, blocks + 1)})
            raise ValueError(
                f"depth {self.depth} gives (depth - {fixed}) / 6 = {(self.depth - fixed) / 6:.2f} blocks "
                f'(counting = "{self.counting}"), expected a whole number; use {" or ".join(map(str, near))}'
            )
        return blocks

    def network(self, normalise: nn.Module, classes: int, shape: Shape) -> nn.Module:
        """The network behind its normalisation."""
        return Wide(self, normalise, shape[0], classes)
