"""The three networks: a text encoder, a denoising transformer, and an autoencoder of pictures. They share one width of blocks."""

from __future__ import annotations

import math

import torch
from attrs import frozen
from torch import nn
from torch.nn import functional

from omni_demo.image.words import LONGEST, VOCABULARY


@frozen
class Shape:
    """The dimensions of the networks.

    Attributes:
        grid: latents of a picture in each direction.
        channels: of a latent.
        read, drawn: pixels of a latent in each direction, of pictures that are read and that are drawn.
        conditions: vectors that a prompt becomes.
        text_width, text_layers, width, layers, heads: of the transformers.
        pixels_width: channels of the autoencoder.
    """

    grid: int = 6
    channels: int = 16
    read: int = 16
    drawn: int = 32
    conditions: int = 4
    text_width: int = 96
    text_layers: int = 3
    width: int = 128
    layers: int = 6
    heads: int = 4
    pixels_width: int = 128


def _norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:])


class Block(nn.Module):
    """A transformer's block: attention of all to all, then a feed-forward network, both behind a norm without weights."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(
        self, x: torch.Tensor, changes: list[torch.Tensor] | None = None, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return ``x``, ``[n, positions, width]``, one block further.

        Args:
            changes: scale, shift and gate of the attention, and of the feed-forward network, each ``[n, 1, width]``.
            mask: bool ``[n, 1, 1, positions]``, true where there is something.
        """
        n, positions, width = x.shape
        h = _norm(x) if changes is None else _norm(x) * (1 + changes[0]) + changes[1]
        q, k, v = self.qkv(h).view(n, positions, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        # For so few positions this is faster than the fused kernel, most of all its gradient on a CPU.
        scores = _norm(q) * (width // self.heads) ** -0.5 @ _norm(k).transpose(2, 3)
        attended = (scores if mask is None else scores.masked_fill(~mask, -1e4)).softmax(-1).to(v.dtype) @ v
        h = self.out(attended.transpose(1, 2).reshape(n, positions, width))
        x = x + (h if changes is None else h * changes[2])
        h = _norm(x) if changes is None else _norm(x) * (1 + changes[3]) + changes[4]
        h = self.down(functional.gelu(self.up(h), approximate="tanh"))
        return x + (h if changes is None else h * changes[5])


class TextEncoder(nn.Module):
    """Reads a prompt into a fixed number of vectors, at learned query positions behind its words."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.text_width
        self.words = nn.Embedding(len(VOCABULARY), width)
        self.places = nn.Parameter(torch.randn(LONGEST, width) * 0.3)
        self.queries = nn.Parameter(torch.randn(shape.conditions, width))
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(shape.text_layers))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return ``[n, conditions, width]`` of int64 ``[n, longest]``, padded with 0."""
        n, longest = numbers.shape
        queries = self.queries.expand(n, -1, -1)
        x = torch.cat([queries, self.words(numbers) + self.places[:longest]], 1)
        mask = torch.cat([numbers.new_ones(n, queries.shape[1]), numbers], 1).bool()[:, None, None]
        for block in self.blocks:
            x = block(x, mask=mask)
        return _norm(x[:, : queries.shape[1]])


class Denoiser(nn.Module):
    """Predicts the clean latents of a picture from noisy ones, a noise level, the prompt, and the picture that is edited.

    Latents of a given picture are further channels of the same positions: what does not change is copied in place.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, positions = shape.width, shape.grid**2
        self.enter = nn.Linear(2 * shape.channels + 1, width)
        self.places = nn.Parameter(torch.randn(positions, width) * 0.3)
        self.prompt = nn.Linear(shape.text_width, width)
        self.kinds = nn.Parameter(torch.randn(shape.conditions, width) * 0.3)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.changes = nn.Linear(width, 6 * width)
        self.changes_of = nn.Parameter(torch.zeros(shape.layers, 6, width))
        self.blocks = nn.ModuleList(Block(width, shape.heads) for _ in range(shape.layers))
        self.last = nn.Linear(width, shape.channels)
        nn.init.zeros_(self.changes.weight)
        nn.init.zeros_(self.changes.bias)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        with torch.no_grad():
            self.changes_of[:, 2], self.changes_of[:, 5] = 0.5, 0.5

    def forward(
        self, noisy: torch.Tensor, levels: torch.Tensor, conditions: torch.Tensor, given: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return clean latents, ``[n, positions, channels]``.

        Args:
            noisy: ``[n, positions, channels]``.
            levels: ``[n]``, 0 (clean) to 1 (noise).
            conditions: ``[n, conditions, text width]``.
            given: latents of the picture that is edited; NaN in a row of training without one. ``None``: no row has one.
        """
        if given is None:
            given = torch.full_like(noisy, torch.nan)
        has = ~given[..., :1].isnan()
        x = self.enter(torch.cat([noisy, given.nan_to_num(0.0), has.to(noisy)], -1)) + self.places
        x = torch.cat([self.prompt(conditions) + self.kinds, x], 1)
        rates = torch.exp(torch.linspace(0, -math.log(1000), 32, device=levels.device))
        angles = 1000 * levels[:, None].float() * rates
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(noisy.dtype))
        common = self.changes(time).view(len(noisy), 1, 6, -1)
        for block, own in zip(self.blocks, self.changes_of, strict=True):
            x = block(x, list((common + own).unbind(2)))
        return self.last(_norm(x[:, conditions.shape[1] :]))


class _Mix(nn.Module):
    """A residual convolution of neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(functional.gelu(self.conv(functional.gelu(x))))


class Autoencoder(nn.Module):
    """Pictures to latents of a coarse grid, and back to pictures of twice the resolution.

    Most layers compute on a grid four times as fine as that of the latents; the last one draws squares of 8 x 8 pixels.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.mean, self.std = nn.Buffer(torch.zeros(shape.channels, 1, 1)), nn.Buffer(torch.ones(shape.channels, 1, 1))
        fine, wide = shape.pixels_width * 3 // 4, shape.pixels_width
        read, drawn = shape.read // 4, shape.drawn // 4
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(read),
            nn.Conv2d(3 * read**2, fine // 2, 1),
            _Mix(fine // 2),
            nn.PixelUnshuffle(4),
            nn.Conv2d(8 * fine, wide, 1),
            _Mix(wide),
            nn.GELU(),
            nn.Conv2d(wide, shape.channels, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(shape.channels, wide, 1),
            _Mix(wide),
            nn.Conv2d(wide, 4 * wide, 1),
            nn.PixelShuffle(2),
            _Mix(wide),
            nn.Conv2d(wide, 4 * fine, 1),
            nn.PixelShuffle(2),
            _Mix(fine),
            nn.GELU(),
            nn.Conv2d(fine, 2 * fine, 1),
            nn.GELU(),
            nn.Conv2d(2 * fine, 3 * drawn**2, 1),
            nn.PixelShuffle(drawn),
        )

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """``[n, 3, height, width]`` in [-1, 1] to latents ``[n, channels, grid, grid]``, each channel normalised."""
        latents: torch.Tensor = self.encoder(images)
        return (latents.tanh() - self.mean) / self.std

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`encode`, at the resolution of drawn pictures."""
        images: torch.Tensor = self.decoder(latents * self.std + self.mean)
        return images
