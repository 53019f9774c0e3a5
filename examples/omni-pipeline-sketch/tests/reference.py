"""The model in plain PyTorch, written from its description: whole sequences, one request and one role at a time, no cache."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

LAYERS, HEADS, KV_HEADS, WIDTH, HIDDEN = 2, 4, 2, 8, 32


def drawn(folder: Path, request: dict[str, Any]) -> torch.Tensor:
    """Return the float32 samples ``[1, height, width, 3]`` of a request."""
    weights = load_file(folder / "model.safetensors")
    text, image = list(request["text"].encode()), request.get("image")
    scales = request.get("text_guidance", 4.0), request.get("image_guidance", 2.0)
    contexts = {"all": read(weights, text, image, request.get("thoughts", 0))}
    if scales[0] > 1:
        contexts["no_text"] = read(weights, [], image, 0)
    if image is not None and scales[1] > 1:
        contexts["no_image"] = read(weights, text, None, 0)
    height, width, steps = request.get("height", 32), request.get("width", 32), request.get("steps", 8)
    x = torch.randn((height, width, 3), generator=torch.Generator().manual_seed(request["seed"]))
    raised = [1 - step * (1 - 1 / steps) / max(1, steps - 1) for step in range(steps)]
    times = [3 * time / (1 + 2 * time) for time in raised] + [0.0]
    for now, after in pairwise(times):
        found = {role: velocity(weights, x, now, context) for role, context in contexts.items()}
        moved = found["all"]
        if "no_text" in found:
            moved = found["no_text"] + scales[0] * (moved - found["no_text"])
        if "no_image" in found:
            moved = found["no_image"] + scales[1] * (moved - found["no_image"])
        x = x + (after - now) * moved
    return x.unsqueeze(0)


def read(weights: dict[str, torch.Tensor], text: list[int], image: Any, thoughts: int) -> list[Any]:
    """Return the keys and values of each layer, ``[positions, kv_heads, head_dim]``, and the last hidden state."""
    table = weights["read.table.weight"]
    x = table[[256]]
    if image is not None:
        squares = cut(torch.from_numpy(image).float() / 127.5 - 1)
        x = torch.cat([x, squares @ weights["read.see.weight"].T + weights["read.see.bias"]])
    x = torch.cat([x, table[text]])
    while True:
        context = through_reader(weights, x)
        if thoughts == 0:
            return context
        token = int((context[-1] @ weights["read.head.weight"].T).argmax())
        if token == 257:
            return context
        x, thoughts = torch.cat([x, table[[token]]]), thoughts - 1


def through_reader(weights: dict[str, torch.Tensor], x: torch.Tensor) -> list[Any]:
    context: list[Any] = []
    positions = torch.arange(len(x))
    causal = torch.ones(len(x), len(x)).tril().bool()
    for number in range(LAYERS):
        x, key, value = layer(weights, f"read.layers.{number}.", x, positions, None, causal)
        context.append((key, value))
    return [*context, norm(x, weights["read.norm"])[-1]]


def velocity(weights: dict[str, torch.Tensor], pixels: torch.Tensor, time: float, context: list[Any]) -> torch.Tensor:
    rows, columns = pixels.shape[0] // 4, pixels.shape[1] // 4
    x = cut(pixels) @ weights["draw.patch_in.weight"].T + weights["draw.patch_in.bias"]
    for row in range(rows):
        for column in range(columns):
            x[row * columns + column] += torch.cat([waves(row, HIDDEN // 2), waves(column, HIDDEN // 2)])
    x = x + weights["draw.time.weight"] @ waves(1000 * time, HIDDEN) + weights["draw.time.bias"]
    x = x + weights["draw.summary.weight"] @ context[-1] + weights["draw.summary.bias"]
    positions = torch.full((len(x),), len(context[0][0]))
    for number in range(LAYERS):
        x, _, _ = layer(weights, f"draw.layers.{number}.", x, positions, context[number], None)
    out = norm(x, weights["draw.norm"]) @ weights["draw.patch_out.weight"].T + weights["draw.patch_out.bias"]
    image = torch.empty_like(pixels)
    for number, square in enumerate(out):
        row, column = 4 * (number // columns), 4 * (number % columns)
        image[row : row + 4, column : column + 4] = square.view(4, 4, 3)
    return image


def layer(
    weights: dict[str, torch.Tensor], prefix: str, x: torch.Tensor, positions: torch.Tensor, past: Any, mask: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    normed = norm(x, weights[prefix + "norm"])
    query, key, value = (
        (normed @ weights[f"{prefix}{name}.weight"].T).view(len(x), -1, WIDTH) for name in ("q", "k", "v")
    )
    query, key = turned(query, positions), turned(key, positions)
    keys, values = (key, value) if past is None else (torch.cat([past[0], key]), torch.cat([past[1], value]))
    mixed = []
    for head in range(HEADS):
        scores = query[:, head] @ keys[:, head * KV_HEADS // HEADS].T / math.sqrt(WIDTH)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        mixed.append(scores.softmax(-1) @ values[:, head * KV_HEADS // HEADS])
    x = x + torch.cat(mixed, 1) @ weights[prefix + "o.weight"].T
    up = norm(x, weights[prefix + "mlp_norm"]) @ weights[prefix + "up.weight"].T
    return x + (up * up.sigmoid()) @ weights[prefix + "down.weight"].T, key, value


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    half = WIDTH // 2
    angles = positions[:, None, None].float() * 10_000.0 ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def waves(value: float, width: int) -> torch.Tensor:
    angles = value * torch.tensor([1000.0 ** (-2 * each / width) for each in range(width // 2)])
    return torch.cat([angles.cos(), angles.sin()])


def cut(pixels: torch.Tensor) -> torch.Tensor:
    """``[height, width, 3]`` to its squares of 4 by 4, row by row."""
    height, width = pixels.shape[:2]
    return torch.stack(
        [
            pixels[row : row + 4, column : column + 4].flatten()
            for row in range(0, height, 4)
            for column in range(0, width, 4)
        ]
    )
