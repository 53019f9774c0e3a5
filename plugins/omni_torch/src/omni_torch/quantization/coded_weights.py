"""Stores bfloat16 weights in 12 bits without loss: the exponents of an output's weights are few, so four bits name each of them.

Zhang et al., "70 % Size, 100 % Accuracy: Lossless LLM Compression for Efficient GPU Inference via Dynamic-Length Float" (2025), code
exponents by their frequency, in 11 bits per weight on average. Here every code has four bits, which vectors look up without finding out
where it begins.
"""

from __future__ import annotations

import torch

UNIT = 128
"""Inputs whose bytes are adjacent, in three lines of a cache."""

WINDOW = 15
"""Adjacent exponents that have a code."""

RARE_SHARE = 256
"""There is room for one weight of so many whose exponent has no code."""

LARGEST_SIZE = 1 << 16
"""The most inputs: positions of rare weights have 16 bits."""

_VALUES_AT_ONCE = 1 << 22


def coded_bfloat16(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return a weight's values rounded to bfloat16, as codes; ``None`` if more than one of :data:`RARE_SHARE` weights has an exponent
    outside of its output's :data:`WINDOW` most frequent adjacent ones, or there are more than :data:`LARGEST_SIZE` inputs.

    Args:
        weight: ``[out, in]`` of any float dtype; ``in`` a multiple of :data:`UNIT` and at most :data:`LARGEST_SIZE`. On the meta device
            only shapes are made.

    Returns:
        Codes, uint8 ``[out, in * 3 / 2]``: of each :data:`UNIT` inputs 96 words of 16 bits, little-endian. Word j of the first 32 has the
            sign of input j (bit 15) and its mantissa (bits 0 to 6) as bfloat16 has them, and, as if its bytes were exchanged, those of
            input j + 32 (sign: bit 7, mantissa: bits 8 to 14); the second 32 words have those of the inputs from 64 on. Word j of the
            last 32 has the exponents' codes of inputs j, j + 32, j + 64 and j + 96, from its lowest four bits to its highest. A code from
            0 to 14 is subtracted from the output's largest exponent; 15 is the exponent 0.
        Words, int32 ``[out + 1 + out * in / RARE_SHARE]``: of each output its largest exponent (bits 0 to 7) and the number of rare weights
            of the outputs before it (bits 8 to 30), and once more the number of all; then the rare weights by output and input, each with
            its input (bits 16 to 31) and its value.
    """
    out, size = weight.shape
    assert not size % UNIT, "a unit would be cut"
    if size > LARGEST_SIZE:
        return None
    room = out * size // RARE_SHARE
    if weight.is_meta:
        return weight.new_empty(out, size * 3 // 2, dtype=torch.uint8), weight.new_empty(
            out + 1 + room, dtype=torch.int32
        )
    codes = torch.empty(out, size * 3 // 2, dtype=torch.uint8, device=weight.device)
    words = torch.zeros(out + 1 + room, dtype=torch.int32, device=weight.device)
    begins = torch.zeros(out + 1, dtype=torch.int64, device=weight.device)
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
        sign, mantissa = (each.unflatten(1, (-1, 2, 2, 32)) for each in (bits >> 15, bits & 0x7F))
        plain, exchanged = (each.unbind(3) for each in (sign, mantissa))
        low, high = exchanged[0] | (plain[1] << 7), exchanged[1] | (plain[0] << 7)
        named = code.unflatten(1, (-1, 4, 32))
        names = named[:, :, ::2] | (named[:, :, 1::2] << 4)
        words_of = torch.cat([torch.stack([low, high], -1), names.transpose(2, 3).unsqueeze(2)], 2)
        codes[first : first + len(part)] = words_of.flatten(1).to(torch.uint8)
    words[: out + 1] |= (begins << 8).to(torch.int32)
    return codes, words


def decoded_bfloat16(codes: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return the values of :func:`coded_bfloat16`, bfloat16 ``[out, in]``."""
    out = len(codes)
    pairs = codes.unflatten(1, (-1, 3, 32, 2)).to(torch.int32)
    low, high = pairs[:, :, :2].unbind(-1)
    sign = torch.stack([high >> 7, low >> 7], 3).flatten(1)
    mantissa = torch.stack([low & 0x7F, high & 0x7F], 3).flatten(1)
    names = pairs[:, :, 2].transpose(2, 3)
    code = torch.stack([names & 15, names >> 4], 3).flatten(1)
    largest, begins = words[:out] & 0xFF, words[: out + 1] >> 8
    exponents = torch.where(code < WINDOW, (largest.unsqueeze(1) - code).clamp_(min=0), 0)
    bits = (sign << 15) | (exponents << 7) | mantissa
    count = int(begins[-1])
    rare = words[out + 1 : out + 1 + count].to(torch.int64) & 0xFFFFFFFF
    outputs = torch.repeat_interleave(torch.arange(out, device=words.device), begins.diff().long())
    bits[outputs, rare >> 16] = (rare & 0xFFFF).to(torch.int32)
    return torch.where(bits >= 1 << 15, bits - (1 << 16), bits).to(torch.int16).view(torch.bfloat16)


def _largest(exponents: torch.Tensor) -> torch.Tensor:
    """Return the largest exponent of the best window of each row: ``[n, k]`` to ``[n]``, int32."""
    counts = torch.zeros(len(exponents), 256, dtype=torch.int32, device=exponents.device)
    counts.scatter_add_(1, exponents.long(), torch.ones_like(exponents))
    counts[:, 0] = 0  # has a code of its own
    totals = torch.nn.functional.pad(counts.cumsum(1), (WINDOW, 0))
    return (totals[:, WINDOW:] - totals[:, :-WINDOW]).argmax(1).to(torch.int32)
