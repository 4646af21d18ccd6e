"""Networks of the sizes that people use, from the papers: a residual network, a vision transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional


@final
class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut (He et al. 2016, "Deep residual learning for image recognition", Figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolution1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.convolution2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.convolution1(x)))
        return functional.relu(self.norm2(self.convolution2(y)) + self.shortcut(x))


@final
class ResNet(nn.Module):
    """The 18 layers of Table 1, by default: 11.69 million weights, 3 × 224 × 224 to 1,000 classes."""

    def __init__(self, classes: int = 1000, width: int = 64, blocks: Sequence[int] = (2, 2, 2, 2)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for block in range(count):
                stages.append(ResidualBlock(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


@final
class Attention(nn.Module):
    """Every token looks at all tokens (Vaswani et al. 2017, eq. 1); queries, keys and values in one linear map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projections(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.output(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@final
class TransformerBlock(nn.Module):
    """Attention and a perceptron, each after a norm and beside a shortcut (Dosovitskiy et al. 2021, eq. 2 and 3)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


@final
class VisionTransformer(nn.Module):
    """ViT-Tiny, by default (Touvron et al. 2021, Table 1): 5.72 million weights, 3 × 224 × 224 to 1,000 classes.

    The image's patches are tokens, with a learnt one for the class before them and a learnt table of positions
    (Dosovitskiy et al. 2021, "An image is worth 16x16 words", eq. 1 and 4).
    """

    def __init__(
        self, classes: int = 1000, width: int = 192, depth: int = 12, heads: int = 3, patch: int = 16, size: int = 224
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.positions
        return self.head(self.norm(self.blocks(tokens))[:, 0])
