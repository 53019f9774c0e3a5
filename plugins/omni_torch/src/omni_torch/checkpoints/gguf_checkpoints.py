"""Reads the weights of a text decoder from a GGUF file, under the names of a checkpoint in safetensors.

Needs the ``gguf`` package, an optional extra. Q8_0, Q4_0, Q4_1 and Q4_K are loaded in 8 and 4 bits as they are
(:mod:`omni_torch.quantization.quantized_checkpoints` has the names), Q5_K and Q6_K rounded to 8 bits; every other type that the package
knows becomes floats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_core.api import ConfigError
from omni_torch.checkpoints.weights import Checkpoint, PartOf, whole
from omni_torch.operations.few_rows import GROUP, Groups, packed_int4
from omni_torch.quantization.quantized_checkpoints import SCALES, VALUES
from omni_torch.quantization.quantized_values import quantized_int8_groups

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate_inp": "mlp.gate",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""The names of GGUF's tensors, and ours."""

EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
"""Tensors that hold those of all experts, ``[experts, out, in]``."""

SUPER = 8
"""Groups of 32 of a block of Q4_K."""


class GgufCheckpoint(Checkpoint):
    """The tensors of a GGUF file, under names that begin with ``prefix``.

    Args:
        architectures: the names that tools have for the model's, which begin the keys of the metadata.
        expected: values of the metadata, without the architecture before them.
        stated: those that are compared where the file has them.
        folder: the checkpoint that everything else comes from.

    Raises:
        ConfigError: the file is missing, no GGUF file, of another architecture or of other dimensions; or the package is missing.
    """

    def __init__(
        self,
        path: str | Path,
        prefix: str,
        architectures: Sequence[str],
        expected: Mapping[str, int],
        stated: Mapping[str, Any],
        folder: str | Path,
    ) -> None:
        self.path = Path(path).expanduser()
        self.folder = Path(folder)
        reader = _open(self.path)
        found = _value(reader, "general.architecture")
        if found not in architectures:
            raise ConfigError(
                f"{self.path}: general.architecture is {found!r}, this model's is {' or '.join(map(repr, architectures))}; "
                "choose a file of this model"
            )
        for key, value in {**expected, **stated}.items():
            name = f"{found}.{key}"
            if (given := _value(reader, name)) != value and not (key in stated and given is None):
                raise ConfigError(
                    f"{self.path}: {name} is {given}, config.json of {folder} says {value}; choose a file of this model"
                )
        self._tensors: dict[str, tuple[Any, int | None]] = {}
        for tensor in reader.tensors:
            self._place(tensor, prefix)
        head = f"{prefix}lm_head.weight"
        if head not in self._tensors and f"{prefix}model.embed_tokens.weight" in self._tensors:
            self._tensors[head] = self._tensors[f"{prefix}model.embed_tokens.weight"]  # tied, as the format has it
        layers = [
            name.removesuffix(".weight") for name, (tensor, _) in self._tensors.items() if _kind(tensor) in NARROW
        ]
        self.shards = dict.fromkeys(
            [*self._tensors, *(f"{layer}{end}" for layer in layers for end in (VALUES, SCALES))], self.path
        )

    def _place(self, tensor: Any, prefix: str) -> None:
        found = re.fullmatch(r"(?:blk\.(\d+)\.)?(.*)\.(weight|bias)", tensor.name)
        block, stem, end = (None, "", "") if found is None else found.groups()
        before = f"{prefix}model.layers.{block}." if block is not None else prefix
        if stem in EXPERTS:
            for expert in range(int(tensor.shape[-1])):
                self._tensors[f"{before}mlp.experts.{expert}.{EXPERTS[stem]}.{end}"] = tensor, expert
        elif stem in NAMES:
            self._tensors[f"{before}{NAMES[stem]}.{end}"] = tensor, None
        else:
            raise self._misplaced(tensor)

    def _misplaced(self, tensor: Any) -> ConfigError:
        return ConfigError(
            f"{self.path}: the tensor {tensor.name!r} has no place in this model; choose a file of this model"
        )

    def check_names(self, names: Iterable[str]) -> None:
        """Check that the file has these tensors, and none beside them, which would change what the model computes.

        Raises:
            ConfigError: it lacks one, or has another one.
        """
        used = set()
        for name in names:
            self.shard_of(name)
            used.add(self._tensors[name][0].name)
        for tensor, _ in self._tensors.values():
            if tensor.name not in used:
                raise self._misplaced(tensor)

    def shard_of(self, name: str) -> Path:
        if name not in self.shards:
            raise ConfigError(
                f"{self.path} lacks the tensor {name!r}, in its own names that of the same place; download the file again"
            )
        return self.path

    def read_rows(self, name: str, rows: list[int]) -> torch.Tensor:
        return self.read([name])[name][rows]

    def narrow(self, weights: Iterable[str]) -> Groups | None:
        kinds = {_kind(self._tensors[name][0]) if name in self._tensors else None for name in weights}
        return NARROW.get(kinds.pop() or "") if len(kinds) == 1 else None

    def read(
        self, names: Iterable[str], part_of: PartOf = whole, dtype: torch.dtype | None = None
    ) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        wanted = dict.fromkeys(names)
        for name in wanted:
            if name in tensors:
                continue
            self.shard_of(name)
            end = next((each for each in (VALUES, SCALES) if name.endswith(each)), None)
            tensor, expert = self._tensors[name if end is None else f"{name.removesuffix(end)}.weight"]
            data = tensor.data if expert is None else tensor.data[expert]
            if end is not None:
                layer = name.removesuffix(end)
                made = zip((f"{layer}{VALUES}", f"{layer}{SCALES}"), _narrowed(_kind(tensor), data), strict=True)
                tensors |= {each: part for each, part in made if each in wanted}  # both of a layer are unpacked once
                continue
            wide = self._dequantized(tensor, data).to(dtype or torch.float32)
            part = part_of(name)
            tensors[name] = wide if part is None else wide[part.bounds(name, tuple(wide.shape))].contiguous()
        return tensors

    def _dequantized(self, tensor: Any, data: Any) -> torch.Tensor:
        from gguf.quants import dequantize

        try:
            wide = dequantize(data, tensor.tensor_type)
        except NotImplementedError:
            raise ConfigError(
                f"{self.path}: the tensor {tensor.name!r} is of type {_kind(tensor)}, which the gguf package cannot convert; "
                "use a file of Q4_0, Q4_K, Q8_0, BF16, F16 or F32"
            ) from None
        return torch.from_numpy(np.array(wide, dtype=np.float32))


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ConfigError(
            f'{path}: reading GGUF needs the gguf package: pip install "omni-torch[gguf]" ({error})'
        ) from None
    if not path.is_file():
        what = "no file" if path.exists() else "missing"
        raise ConfigError(f"{path} is {what}; give the path of a GGUF file")
    try:
        return GGUFReader(path)
    except Exception as error:  # the package raises what its arrays raise
        raise ConfigError(f"{path} cannot be read: {type(error).__name__}: {error}; download it again") from error


def _value(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _kind(tensor: Any) -> str:
    return str(tensor.tensor_type.name)


NARROW = {
    "Q8_0": Groups(8),
    "Q4_0": Groups(4),
    "Q4_1": Groups(4, zero_points=True),
    "Q4_K": Groups(4, zero_points=True),
    "Q5_K": Groups(8),
    "Q6_K": Groups(8),
}
"""The types that stay narrow, and how. Those of 5 and 6 bits are rounded to 8."""


def _narrowed(kind: str, data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and scales in the layout of :func:`omni_torch.operations.few_rows.widened`. data: blocks, uint8 ``[out, bytes]``."""
    rows = np.ascontiguousarray(data)
    if kind in ("Q8_0", "Q4_0"):  # a scale in float16, then 32 or 16 bytes as ours are
        blocks = rows.reshape(len(rows), -1, 2 + GROUP * NARROW[kind].bits // 8)
        halves = torch.from_numpy(np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32))
        narrow = torch.from_numpy(blocks[..., 2:].reshape(len(rows), -1).copy())
        return narrow.view(torch.int8) if kind == "Q8_0" else narrow, halves.to(torch.bfloat16)
    if kind in ("Q5_K", "Q6_K"):
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        return quantized_int8_groups(torch.from_numpy(dequantize(rows, GGMLQuantizationType[kind])))
    if kind == "Q4_1":  # a scale and a minimum in float16, then 16 bytes as ours are
        blocks = rows.reshape(len(rows), -1, 4 + GROUP // 2)
        pairs = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float32)
        scales, minima = pairs[..., 0], -pairs[..., 1]
        stored = np.where(scales[..., None] == 0, 0, blocks[..., 4:]).reshape(len(rows), -1)
        return torch.from_numpy(stored.copy()), _with_zero_points(scales, minima)
    # Two float16, 12 bytes of eight 6-bit scales and minima, and 128 bytes: of 32 the low halves are a group, the high ones the next.
    from gguf.quants import Q4_K

    supers = rows.reshape(-1, 4 + 12 + 16 * SUPER)
    both = np.ascontiguousarray(supers[:, :4]).view(np.float16).astype(np.float32)
    low, high = Q4_K.get_scale_min(supers[:, 4:16])
    factors, minima = low * both[:, :1], high * both[:, 1:]
    bytes_of = supers[:, 16:].reshape(-1, SUPER // 2, 1, GROUP)
    values = np.concatenate([bytes_of & 15, bytes_of >> 4], 2).reshape(-1, SUPER, GROUP)
    values = np.where(factors[..., None] == 0, 0, values).astype(np.uint8)
    both_rows = _with_zero_points(factors.reshape(len(rows), -1), minima.reshape(len(rows), -1))
    return packed_int4(torch.from_numpy(values.reshape(len(rows), -1))), both_rows


def _with_zero_points(factors: Any, minima: Any) -> torch.Tensor:
    """Return scales and zero points ``[out, 2, groups]`` of values ``q * factor - minimum``, where ``q`` is 0 if the factor is.

    A group without a factor is its minimum everywhere, which a zero point alone cannot say.
    """
    scales = np.where(factors == 0, minima, factors)
    zeros = np.divide(minima, scales, out=np.zeros_like(minima), where=scales != 0)
    return torch.from_numpy(np.stack([scales, zeros], 1)).to(torch.bfloat16)
