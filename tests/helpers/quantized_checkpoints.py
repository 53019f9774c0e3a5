"""Writes checkpoints in 4 or 8 bits as the tools of GPTQ, AWQ, llm-compressor and fine-grained fp8 do, and GGUF files, for tests and
benchmarks of their readers.

Weights are rounded to the nearest value; the tools themselves choose values by data, which is a matter of quality, not of the format.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

INDEX = "model.safetensors.index.json"

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The outputs of an AWQ word, lowest bits first."""

Tensors = dict[str, torch.Tensor]


def write_quantized(
    source: Path,
    target: Path,
    pattern: str,
    *,
    method: str = "gptq",
    group: int = 128,
    symmetric: bool = True,
    reordered: bool = False,
    version: int = 1,
    bits: int = 4,
    plain: Path | None = None,
) -> dict[str, Any]:
    """Write a checkpoint with the weights that ``pattern`` finds in ``bits`` bits; return its ``quantization_config``.

    Args:
        source, target: folders; ``target`` is made.
        pattern: of tensor names.
        method: ``gptq``, ``awq`` or ``compressed-tensors``, of the latter ``pack-quantized``.
        group: inputs that share a scale.
        symmetric: all zero points are half of the values.
        reordered: inputs of a group are not adjacent (``desc_act``).
        version: of GPTQ's format, 1 or 2.
        plain: a folder for the same checkpoint with the rounded weights as floats.
    """
    stored, rounded = Tensors(), Tensors()
    for name, tensor in _tensors(source).items():
        if re.search(pattern, name) is None:
            stored[name] = rounded[name] = tensor
            continue
        layer = name.removesuffix(".weight")
        parts, rounded[name] = _layer(tensor.float(), method, group, symmetric, reordered, version, bits)
        stored |= {f"{layer}.{part}": value for part, value in parts.items()}
    section: dict[str, Any] = {"quant_method": method, "bits": bits, "group_size": group}
    if method == "compressed-tensors":
        weights: dict[str, Any] = {
            "num_bits": bits,
            "type": "int",
            "symmetric": symmetric,
            "actorder": "group" if reordered else None,
        }
        weights |= {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
        group_0 = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        section = {
            "quant_method": method,
            "format": "pack-quantized",
            "config_groups": {"group_0": group_0},
            "ignore": ["lm_head"],
        }
    elif method == "awq":
        section |= {"version": "gemm", "zero_point": not symmetric}
    else:
        section |= {"sym": symmetric, "desc_act": reordered, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    _write(source, target, stored, {"quantization_config": section})
    if plain is not None:
        _write(source, plain, rounded, {})
    return section


def write_scaled(
    source: Path,
    target: Path,
    pattern: str,
    *,
    method: str = "fp8",
    strategy: str = "block",
    block: tuple[int, int] = (128, 128),
    kind: torch.dtype = torch.float8_e4m3fn,
    divisors: bool = False,
    plain: Path | None = None,
) -> dict[str, Any]:
    """Write a checkpoint with the weights that ``pattern`` finds in 8 bits with scales; return its ``quantization_config``.

    Args:
        source, target, pattern, plain: as of :func:`write_quantized`.
        method: ``fp8`` or ``compressed-tensors``.
        strategy: ``block``, ``channel`` or ``tensor``.
        block: outputs and inputs of one.
        kind: of values, float8_e4m3fn or int8.
        divisors: scales are stored as their reciprocals.
    """
    most = 448 if kind.is_floating_point else 127
    stored, rounded = Tensors(), Tensors()
    for name, tensor in _tensors(source).items():
        if re.search(pattern, name) is None:
            stored[name] = rounded[name] = tensor
            continue
        wide = tensor.float()
        out, size = wide.shape
        each = {"block": block, "channel": (1, size), "tensor": (out, size)}[strategy]
        grid = -(-out // each[0]), -(-size // each[1])
        padded = torch.zeros(grid[0] * each[0], grid[1] * each[1])
        padded[:out, :size] = wide
        parts = padded.view(grid[0], each[0], grid[1], each[1])
        scales = (parts.abs().amax((1, 3)) / most).clamp(min=1e-20)
        values = (parts / scales[:, None, :, None]).clamp(-most, most)
        values = (values if kind.is_floating_point else values.round()).to(kind)
        rounded[name] = (values.float() * scales[:, None, :, None]).view(padded.shape)[:out, :size]
        stored[name] = values.view(padded.shape)[:out, :size]
        end = "weight_scale_inv" if method == "fp8" else "weight_scale"
        stored[name.removesuffix("weight") + end] = scales.reciprocal() if divisors else scales
    if method == "fp8":
        section: dict[str, Any] = {"quant_method": method, "fmt": "e4m3", "activation_scheme": "dynamic"}
        section |= {"weight_block_size": [*block]} if strategy == "block" else {}
    else:
        weights: dict[str, Any] = {
            "num_bits": 8,
            "type": "float" if kind.is_floating_point else "int",
            "symmetric": True,
        }
        weights |= {"strategy": strategy} | ({"block_structure": [*block]} if strategy == "block" else {})
        section = {"quant_method": method, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    _write(source, target, stored, {"quantization_config": section})
    if plain is not None:
        _write(source, plain, rounded, {})
    return section


def _tensors(source: Path) -> Tensors:
    return {name: tensor for path in sorted(source.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def _write(source: Path, folder: Path, tensors: Tensors, more: dict[str, Any]) -> None:
    """Write the checkpoint ``source`` with other tensors and ``more`` in its config."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", INDEX))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more, indent=2))
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")


def write_gguf(
    source: Path,
    path: Path,
    kind: str,
    metadata: dict[str, Any],
    *,
    prefix: str = "",
    drop: str = "",
    more: Tensors | None = None,
) -> Path:
    """Write the decoder of a checkpoint as a GGUF file, under the names that the gguf package has for its tensors.

    Args:
        source: the checkpoint's folder.
        kind: of matrices that have whole blocks of it, such as ``Q4_0``; the others are F32.
        metadata: integers, floats and lists of integers by name, without the architecture before them; ``general.architecture``, by default
            that of llama.cpp's converter of Qwen3-Omni, may be given too.
        prefix: before the decoder's names in the checkpoint, such as ``thinker.``.
        drop: a tensor that is left out, by its name there.
        more: tensors that are added, under GGUF's names.
    """
    import gguf

    pattern = re.compile(re.escape(prefix) + r"((?:model|lm_head)\..*?)(?:experts\.(\d+)\.(\w+))?\.?weight")
    found: dict[str, dict[int, torch.Tensor]] = {}
    for shard in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(shard).items():
            if name != drop and (parts := pattern.fullmatch(name)) is not None:
                stem = parts[1].rstrip(".") if parts[2] is None else f"{parts[1]}experts.{parts[3]}"
                found.setdefault(stem, {})[int(parts[2] or -1)] = tensor.float()
    metadata = dict(metadata)
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture", "qwen3vlmoe"))
    for key, value in metadata.items():
        kinds = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
        kinds[type(value)](f"{writer.arch}.{key}", value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3VLMOE, metadata["block_count"])
    for stem, by_expert in found.items():
        values = torch.stack([by_expert[each] for each in sorted(by_expert)]).numpy()
        values = values if len(by_expert) > 1 else values[0]
        wanted = gguf.GGMLQuantizationType[kind]
        narrow = (
            values.ndim > 1
            and not stem.endswith("mlp.gate")
            and values.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0
        )
        stored = wanted if narrow else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{names.get_name(stem)}.weight", gguf.quants.quantize(values, stored), raw_dtype=stored)
    for name, tensor in (more or {}).items():
        writer.add_tensor(name, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _layer(
    weight: torch.Tensor, method: str, group: int, symmetric: bool, reordered: bool, version: int, bits: int
) -> tuple[Tensors, torch.Tensor]:
    """Return the tensors of a layer, ``[out, in]``, and its rounded weight."""
    size = weight.shape[1]
    half, most = 1 << (bits - 1), (1 << bits) - 1
    kind = torch.bfloat16 if method == "compressed-tensors" else torch.float16
    group = size if group == -1 else group
    index = torch.arange(size, dtype=torch.int32) // group
    if reordered:
        index = index[torch.randperm(size, generator=torch.Generator().manual_seed(size))]
    order = index.argsort(stable=True)
    parts = weight[:, order].view(len(weight), -1, group)
    if symmetric:
        scales = (parts.abs().amax(-1) / (half - 1)).to(kind)
        zeros = torch.full_like(scales, half).int()
    else:
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        scales = ((high - low) / most).to(kind)
        zeros = (-low / scales.float()).round().clamp(0, most).int()
    wide_scales, wide_zeros = scales.float()[:, index], zeros[:, index]
    values = ((weight / wide_scales).round().int() + wide_zeros).clamp(0, most)
    rounded = (values - wide_zeros).float() * wide_scales
    if method == "compressed-tensors":
        per_word = 32 // bits
        in_words = tuple(range(per_word))
        parts_of = {
            "weight_packed": _words(F.pad(values, (0, -size % per_word)), in_words, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            parts_of["weight_zero_point"] = _words(F.pad(zeros.T, (0, -len(zeros) % per_word)), in_words, bits).T
        if reordered:
            parts_of["weight_g_idx"] = index
        return parts_of, rounded
    if method == "awq":
        return {
            "qweight": _words(values.T, AWQ_ORDER, bits),
            "qzeros": _words(zeros.T, AWQ_ORDER, bits),
            "scales": scales.T,
        }, rounded
    kept = (zeros - (1 if version == 1 else 0)) & most
    plain = tuple(range(32 // bits))
    made = {
        "qweight": _words(values, plain, bits).T,
        "qzeros": _words(kept.T, plain, bits),
        "scales": scales.T,
        "g_idx": index,
    }
    return made, rounded


def _words(values: torch.Tensor, order: tuple[int, ...], bits: int) -> torch.Tensor:
    """Pack adjacent columns into an int32: ``[n, 32 / bits * m]`` to ``[n, m]``."""
    parts = values.reshape(len(values), -1, len(order)).long()
    words = torch.zeros(parts.shape[:2], dtype=torch.int64)
    for place, column in enumerate(order):
        words |= parts[..., column] << (bits * place)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()
