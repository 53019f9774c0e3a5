"""Frames of a code predictor as one operation: a small decoder that runs once for each code, and each code's choice.

A frame of fifteen codes is fifteen decode steps and fifteen products, which wait for nothing but each other; as separate calls their fixed
costs are a fifth of a frame and more. The operation takes the predictor as data, so that a kernel computes frames in one call.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import define

from omni_torch.operations.decoder_stack import DecoderStack, decode_layers, example
from omni_torch.operations.few_rows import Matrix, few_rows_linear
from omni_torch.operations.kernels import operation
from omni_torch.sampling.sample import sample_tokens


@define(eq=False)
class FramePredictor:
    """A code predictor: its decoder, and for each group but the first the head, ``[vocab, hidden]`` without bias, and the embeddings of its
    codes, ``[vocab, hidden]`` of the dtype of the frames, or in bfloat16 for frames in float32.
    """

    stack: DecoderStack
    heads: list[Matrix]
    embeddings: list[torch.Tensor]


class CodeChoice:
    """A choice of codes for :func:`code_frames`; a call chooses those of one group, ``logits [B, vocab], group -> codes [B]``.

    Attributes are the arguments of :func:`code_frames`.
    """

    def __init__(
        self,
        temperature: torch.Tensor | None = None,
        uniforms: torch.Tensor | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> None:
        self.temperature, self.uniforms, self.top_k, self.top_p = temperature, uniforms, top_k, top_p
        if temperature is not None:
            self._filters = [torch.full_like(temperature, each) for each in (top_k, top_p, 0.0)]

    def __call__(self, logits: torch.Tensor, group: int) -> torch.Tensor:
        if self.temperature is None or self.uniforms is None:
            highest = logits.max(-1)
            return highest.indices.where(highest.values.isfinite(), -1)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        top_k, top_p, min_p = self._filters
        return sample_tokens(wide, self.temperature, top_k, top_p, min_p, self.uniforms[:, group])


def _examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples: one frame and several, greedy and drawn, widths that are multiples of nothing."""
    cases: list[dict[str, Any]] = [
        {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "frames": 1, "vocab": 40},
        {"hidden": 50, "heads": 3, "kv_heads": 1, "head_dim": 14, "frames": 3, "vocab": 23, "drawn": True},
        {"hidden": 96, "heads": 6, "kv_heads": 2, "head_dim": 32, "frames": 5, "vocab": 17, "drawn": True},
    ]
    if dtype == torch.float32:
        cases.append({**cases[2], "stored": torch.bfloat16})
    return [frames_example(dtype, generator, **case) for case in cases]


def frames_example(
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    frames: int,
    vocab: int,
    groups: int = 5,
    drawn: bool = False,
    stored: torch.dtype | None = None,
) -> tuple[Any, ...]:
    """Return random arguments of :func:`code_frames`. Codes do not depend on rounding: the logits of those that may be chosen are far
    apart, and uniform numbers lie in the middle of what draws a code. ``stored``: the dtype of embeddings; ``None``: ``dtype``.
    """
    device = generator.device

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    sizes: dict[str, Any] = {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    stack: DecoderStack = example(dtype, generator, lengths=[1], **sizes)[8]
    embeddings = [(normal(vocab, hidden) * 4).to(stored or dtype) for _ in range(groups - 1)]
    angles = torch.randn((groups, head_dim // 2), generator=generator, device=device).repeat(1, 2)
    given = normal(frames, hidden) * 4, normal(frames, hidden) * 4, angles.cos().to(dtype), angles.sin().to(dtype)
    state, first, cos, sin = (each.double() for each in given)
    temperature = torch.ones(frames, dtype=torch.float64, device=device)
    temperature[frames // 2] = 0.0
    uniforms = torch.empty(frames, groups - 1, dtype=torch.float64, device=device)
    heads_of: list[Matrix] = []
    layers = _Layers(stack, cos, sin, frames)
    layers(state)
    x = first
    for group in range(groups - 1):
        # Of each frame, three codes of its own have the logits 10, 9.5 and 9, whatever the order of their numbers; the others have 0.
        own = torch.randperm(vocab, generator=generator, device=device)[: 3 * frames].view(frames, 3)
        logits = torch.zeros(vocab, frames, dtype=torch.float64, device=device)
        for frame, codes in enumerate(own):
            logits[codes, frame] = torch.tensor([10.0, 9.5, 9.0], dtype=torch.float64, device=device)
        reached = layers(x)
        inverse = torch.linalg.pinv(reached)
        noise = normal(vocab, hidden).double() * 0.1 / hidden**0.5
        weight = logits @ inverse.T + noise - noise @ inverse @ reached  # it changes none of these logits
        heads_of.append(Matrix(weight.to(dtype)))
        shares = logits[own.T, torch.arange(frames, device=device)].softmax(0).T
        by_id = own.argsort(1)
        ends = shares.gather(1, by_id).cumsum(1)
        drawn_place = torch.randint(3, (frames, 1), generator=generator, device=device)
        middle = ends.gather(1, drawn_place) - shares.gather(1, by_id).gather(1, drawn_place) / 2
        uniforms[:, group] = middle[:, 0]
        best = temperature == 0 if drawn else torch.ones_like(temperature).bool()
        x = embeddings[group][torch.where(best, own[:, 0], own.gather(1, by_id.gather(1, drawn_place))[:, 0])].double()
    predictor = FramePredictor(stack, heads_of, embeddings)
    return (*given, predictor, temperature, uniforms, min(10, vocab - 1), 0.95) if drawn else (*given, predictor)


class _Layers:
    """The predictor's decoder by PyTorch, one position of every frame after another."""

    def __init__(self, stack: DecoderStack, cos: torch.Tensor, sin: torch.Tensor, frames: int) -> None:
        self._stack, self._angles, self._groups, self._position = stack, (cos, sin), len(cos), 0
        shape = len(stack.layers), frames * self._groups, stack.kv_heads, stack.head_dim
        self._keys, self._values = cos.new_zeros(shape), cos.new_zeros(shape)
        self._pages = torch.arange(frames, dtype=torch.int32, device=cos.device).unsqueeze(1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        cos, sin = (each[self._position].expand(rows, 1, -1) for each in self._angles)
        self._position += 1
        lengths = torch.full((rows,), self._position, dtype=torch.int32, device=x.device)
        where = self._pages, lengths, self._groups, self._keys, self._values
        (output,) = decode_layers.reference(x, cos, sin, *where, self._stack)
        return output


@operation("code_frames", examples=_examples)
def code_frames(
    hidden: torch.Tensor,
    first: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    predictor: FramePredictor,
    temperature: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Complete ``B`` frames: choose the codes of every group but the first, one after another.

    Positions 0 and 1 of a frame are ``hidden`` and ``first``, each further one the embedding of the code chosen last. A frame does not
    depend on the others.

    Args:
        hidden, first: ``[B, hidden]``, the talker's state and its embedding of the first code.
        cos, sin: ``[groups, head_dim]`` of the same dtype; both halves are equal.
        temperature: ``[B]``; 0 chooses the best code.
        uniforms: ``[B, groups - 1]`` float64 in [0, 1), one for each code. Without both, every code is the best one.
        top_k, top_p: as in :func:`omni_torch.sampling.sample.sample_tokens`, of all frames.

    Returns:
        ``[B, groups - 1]`` int64 codes, -1 where no largest logit is finite; and ``[B, hidden]``, the sum of the embeddings of all codes,
        ``first`` included (that of code 0 in place of -1).
    """
    layers = _Layers(predictor.stack, cos, sin, len(hidden))
    codes = hidden.new_empty((len(hidden), len(predictor.heads)), dtype=torch.int64)
    x, total = first, first.clone()
    choose = CodeChoice(temperature, uniforms, top_k, top_p)
    layers(hidden)
    for group, (head, embeddings) in enumerate(zip(predictor.heads, predictor.embeddings, strict=True)):
        weight = head.weight if head.scales is not None else head.weight.to(x.dtype)
        logits = few_rows_linear.reference(layers(x), weight, head.scales, None, head.int8_inputs)
        codes[:, group] = choose(logits, group)
        x = embeddings[codes[:, group].clamp(min=0)].to(x.dtype)
        total += x
    return codes, total
