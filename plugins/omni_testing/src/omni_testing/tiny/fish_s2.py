"""Writes a complete Fish S2 checkpoint in the released on-disk layout, tiny, with random weights.

The weights are *well conditioned*: drawn at unit gain, so that codes differ from text to text and speech is not silent.
They come from numpy's generator, which gives the same bits on every platform. The speech is meaningless.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_testing.tiny.fish_s2_config import SHAPES, Shape, model_config
from omni_testing.tiny.fish_s2_tokenizer import write_tokenizer
from omni_testing.tiny.writing import new_folder

if TYPE_CHECKING:
    import torch


def write_tiny_checkpoint(directory: str | Path, *, seed: int = 0, shape: str = "a", dtype: str = "float32") -> Path:
    """Write a checkpoint: config, tokenizer, sharded safetensors and codec under the released names.

    Args:
        directory: made if missing; must not hold a checkpoint already.
        seed: of the weights. The same seed and shape give the same bytes.
        shape: one of :data:`SHAPES`.
        dtype: of the decoders' weights on disk, ``float32`` or ``bfloat16``; the codec's are float32.

    Raises:
        ValueError: an unknown shape. FileExistsError: the folder holds a ``config.json``.
    """
    import numpy as np
    import torch

    from omni_fish_s2.config import parse_config

    folder = new_folder(directory, shape, SHAPES)
    dims = SHAPES[shape]
    config = model_config(dims, write_tokenizer(folder, dims.merges, dims.codec.semantic_codebook))
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    numbers = np.random.default_rng(seed)
    decoders = _decoders(dims, parse_config(config), numbers)
    _write_shards(folder, {name: tensor.to(getattr(torch, dtype)) for name, tensor in decoders.items()})
    torch.save(_codec(dims, numbers), folder / "codec.pth")
    return folder


def _write_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write two shards and their index."""
    from safetensors.torch import save_file

    names = list(tensors)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    where: dict[str, str] = {}
    for number, half in enumerate(halves, start=1):
        shard = f"model-{number:05d}-of-{len(halves):05d}.safetensors"
        save_file({name: tensors[name] for name in half}, folder / shard, {"format": "pt"})
        where |= dict.fromkeys(half, shard)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _normal(numbers: Any, shape: Any, gain: float) -> torch.Tensor:
    import numpy as np
    import torch

    return torch.from_numpy((gain * numbers.standard_normal(tuple(shape))).astype(np.float32))


def _decoders(dims: Shape, config: Any, numbers: Any) -> dict[str, torch.Tensor]:
    """Return the decoders' tensors by on-disk name."""
    import torch

    from omni_fish_s2.checkpoint import JOINED
    from omni_fish_s2.slow import PREFIXES, SlowDecoder
    from omni_torch.api import prefixed

    with torch.device("meta"):
        model = SlowDecoder(config)
    tensors = {}
    for name, empty in model.state_dict().items():
        if "norm" in name:
            tensor = 1.0 + _normal(numbers, empty.shape, 0.1)
        elif name.endswith("bias"):
            tensor = _normal(numbers, empty.shape, 0.1)
        elif "embeddings" in name:
            tensor = _normal(numbers, empty.shape, 1.0)
        else:
            gain = 3.0 if name.endswith("output.weight") else 1.0
            tensor = _normal(numbers, empty.shape, gain / empty.shape[1] ** 0.5)
        if name == ("embeddings.weight" if dims.tied else "output.weight"):
            # Speech length: these factors were chosen so that, over the tests' texts, some speech ends before its
            # limit.
            tensor[config.im_end] *= dims.im_end_gain
        on_disk = prefixed(name, PREFIXES)
        part = next((part for part in JOINED if name.endswith(part)), None)
        if part is None or (dims.joined and part.startswith("wqkv")):
            tensors[on_disk] = tensor
            continue
        decoder = config.fast if name.startswith("fast.") else config.slow
        heads = [decoder.heads, decoder.kv_heads, decoder.kv_heads]
        sizes = [count * decoder.head_dim for count in heads] if part.startswith("wqkv") else [len(tensor) // 2] * 2
        for own, piece in zip(JOINED[part], tensor.split(sizes), strict=True):
            tensors[on_disk.removesuffix(part) + own] = piece.contiguous()
    return tensors


def _codec(dims: Shape, numbers: Any) -> dict[str, torch.Tensor]:
    """Return the codec's tensors by on-disk name, weight normalisation unfolded as in the released file."""
    import torch

    from omni_fish_s2.codec.networks import CodecDecoder, CodecEncoder

    with torch.device("meta"):
        shapes = {**CodecEncoder(dims.codec).state_dict(), **CodecDecoder(dims.codec).state_dict()}
    last = f"decoder.model.{len(dims.codec.decoder_rates) + 2}.conv.weight"
    tensors: dict[str, torch.Tensor] = {}
    for name, empty in shapes.items():
        if name.endswith("gamma"):
            tensors[name] = 0.5 + _normal(numbers, empty.shape, 0.05)
        elif name.endswith("alpha") or "norm" in name.split(".")[-2]:
            tensors[name] = (0.0 if name.endswith("bias") else 1.0) + _normal(numbers, empty.shape, 0.1)
        elif name.endswith("bias"):
            tensors[name] = _normal(numbers, empty.shape, 0.05)
        elif "codebook" in name:
            tensors[name] = _normal(numbers, empty.shape, 1.0)
        elif empty.dim() == 2:
            tensors[name] = _normal(numbers, empty.shape, empty.shape[1] ** -0.5)
        else:
            direction = _normal(numbers, empty.shape, 1.0)
            scale = _convolution_gain(name, empty.shape, last)
            stem = name.removesuffix(".weight")
            length = scale * torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
            if name.startswith(("encoder.", "decoder.")):
                tensors[f"{stem}.parametrizations.weight.original0"] = length
                tensors[f"{stem}.parametrizations.weight.original1"] = direction
            elif "_proj" in name:
                tensors[f"{stem}.weight_g"] = length
                tensors[f"{stem}.weight_v"] = direction
            else:
                tensors[name] = scale * direction
    return tensors


def _convolution_gain(name: str, shape: Any, last: str) -> float:
    """Return the factor that gives a convolution unit gain; residual branches and the last layer are quieter."""
    upsamples = ".upsample." in name and name.endswith(".0.conv.weight")
    if upsamples or (name.startswith("decoder.") and ".block.1.conv." in name and name.count(".block.") == 1):
        return float((shape[0] * (1 if upsamples else 2)) ** -0.5)
    gain = 1.0
    if name == last:
        gain = 0.15  # quiet enough that the final tanh does not saturate
    elif ".block.3.conv." in name:
        gain = 0.25  # residual branches: at full gain they amplify rounding a thousandfold
    elif "quantizer.quantizer." in name and "out_proj" in name:
        gain = 0.3  # residual codes add detail to the semantic one
    elif name == "encoder.block.0.conv.weight":
        gain = 4.0  # keep the sound quiet
    return float(gain * (shape[1] * shape[2]) ** -0.5)
