"""Stores bfloat16 weights in 12 bits without loss: the exponents of an output's weights are few, so four bits name each of them.

Zhang et al., "70 % Size, 100 % Accuracy: Lossless LLM Compression for Efficient GPU Inference via Dynamic-Length Float" (2025), code exponents by
their frequency, in 11 bits per weight on average. Here every code has four bits, which vectors look up without finding out where it begins.
"""

from __future__ import annotations

import torch

UNIT = 32
"""Inputs whose bytes are adjacent."""

WINDOW = 15
"""Adjacent exponents that have a code."""

RARE_SHARE = 256
"""There is room for one weight of so many whose exponent has no code."""

LARGEST_SIZE = 1 << 16
"""The most inputs: positions of rare weights have 16 bits."""

_VALUES_AT_ONCE = 1 << 22


def coded_bfloat16(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return a weight's values rounded to bfloat16, as codes; ``None`` if more than one of :data:`RARE_SHARE` weights has an exponent
    outside of its output's :data:`WINDOW` most frequent adjacent ones.

    Args:
        weight: ``[out, in]`` of any float dtype; ``in`` a multiple of :data:`UNIT` and at most :data:`LARGEST_SIZE`. On the meta device only
            shapes are made.

    Returns:
        Codes, uint8 ``[out, in * 3 / 2]``: of each :data:`UNIT` inputs the sign (bit 7) and mantissa of each, a byte, and then 16 bytes, of
            which byte j has the exponent's code of input j in its low half and of input j + 16 in its high half. A code from 0 to 14 is
            subtracted from the output's largest exponent; 15 is the exponent 0.
        Words, int32 ``[out + 1 + out * in / RARE_SHARE]``: of each output its largest exponent (bits 0 to 7) and the number of rare weights
            of the outputs before it (bits 8 to 30), and once more the number of all; then the rare weights by output and input, each with
            its input (bits 16 to 31) and its value.
    """
    out, size = weight.shape
    assert not size % UNIT and size <= LARGEST_SIZE, "a unit would be cut, or positions would not fit"
    room = out * size // RARE_SHARE
    if weight.is_meta:
        return weight.new_empty(out, size * 3 // 2, dtype=torch.uint8), weight.new_empty(
            out + 1 + room, dtype=torch.int32
        )
    codes = torch.empty(out, size * 3 // 2, dtype=torch.uint8)
    words = torch.zeros(out + 1 + room, dtype=torch.int32)
    begins = torch.zeros(out + 1, dtype=torch.int64)
    found, step = 0, max(1, _VALUES_AT_ONCE // size)
    for first in range(0, out, step):
        part = weight[first : first + step]
        bits = part.detach().to(torch.bfloat16).contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
        exponents = (bits >> 7) & 0xFF
        largest = _largest(exponents)
        code = largest.unsqueeze(1) - exponents
        coded = (code >= 0) & (code < WINDOW)
        code = torch.where(coded, code, WINDOW)
        outputs, inputs = torch.nonzero(~coded & (exponents != 0), as_tuple=True)
        if found + len(inputs) > min(room, (1 << 23) - 1):
            return None
        begins[first + 1 : first + 1 + len(part)] = found + torch.bincount(outputs, minlength=len(part)).cumsum(0)
        words[first : first + len(part)] = largest
        rare = (inputs << 16) | bits[outputs, inputs]
        rare = torch.where(rare >= 1 << 31, rare - (1 << 32), rare)
        words[out + 1 + found : out + 1 + found + len(rare)] = rare.to(torch.int32)
        found += len(rare)
        low, high = code.unflatten(1, (-1, UNIT)).chunk(2, dim=-1)
        signed = ((bits >> 8) & 0x80) | (bits & 0x7F)
        units = torch.cat([signed.unflatten(1, (-1, UNIT)), low | (high << 4)], -1)
        codes[first : first + len(part)] = units.flatten(1).to(torch.uint8)
    words[: out + 1] |= (begins << 8).to(torch.int32)
    return codes, words


def decoded_bfloat16(codes: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return the values of :func:`coded_bfloat16`, bfloat16 ``[out, in]``."""
    out = len(codes)
    units = codes.unflatten(1, (-1, UNIT * 3 // 2)).to(torch.int32)
    signed, pairs = units[..., :UNIT].flatten(1), units[..., UNIT:]
    code = torch.cat([pairs & 15, pairs >> 4], -1).flatten(1)
    largest, begins = words[:out] & 0xFF, words[: out + 1] >> 8
    exponents = torch.where(code < WINDOW, (largest.unsqueeze(1) - code).clamp_(min=0), 0)
    bits = ((signed & 0x80) << 8) | (exponents << 7) | (signed & 0x7F)
    count = int(begins[-1])
    rare = words[out + 1 : out + 1 + count].to(torch.int64) & 0xFFFFFFFF
    outputs = torch.repeat_interleave(torch.arange(out), begins.diff().long())
    bits[outputs, rare >> 16] = (rare & 0xFFFF).to(torch.int32)
    return torch.where(bits >= 1 << 15, bits - (1 << 16), bits).to(torch.int16).view(torch.bfloat16)


def _largest(exponents: torch.Tensor) -> torch.Tensor:
    """Return the largest exponent of the best window of each row: ``[n, k]`` to ``[n]``, int32."""
    counts = torch.zeros(len(exponents), 256, dtype=torch.int32)
    counts.scatter_add_(1, exponents.long(), torch.ones_like(exponents))
    counts[:, 0] = 0  # has a code of its own
    totals = torch.nn.functional.pad(counts.cumsum(1), (WINDOW, 0))
    return (totals[:, WINDOW:] - totals[:, :-WINDOW]).argmax(1).to(torch.int32)
