"""Prompt capture: the model's own forward up to its decoder makes the embeddings and positions of a prompt with media."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from attrs import asdict, field, frozen

from omni_core.api import ARRequest, ContentSpan, ForwardBatch
from omni_torch.api import prompt_runs
from omni_transformers.words.blocks import blocks_of
from omni_transformers.words.encoders import Encoders, bytes_of
from omni_transformers.words.engine_model import Decoder

_PLAIN = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}
"""Inputs that a prompt of text has."""

VISUAL = "visual_pos_masks", "deepstack_visual_embeds"

_IGNORED = {
    *("inputs_embeds", "position_ids", "attention_mask", "past_key_values", "cache", "use_cache", "cache_position"),
    *("return_dict", "output_attentions", "output_hidden_states", "logits_to_keep"),
}


@frozen(eq=False)
class Prompt:
    """A prompt as the decoder reads it.

    Attributes:
        ids: one for each position.
        embeds: ``[n, hidden]``; ``None``: those of the ids.
        positions: ``[3, n]`` or ``[n]``; ``None``: as they follow each other.
        position_delta: what the next position is more than ``n``.
        content: the positions that are not embeddings of their ids.
        visual: ``[n]``, positions to which ``deep`` is added; ``None``: none.
        deep: for the first layers, ``[visual positions, hidden]`` each.
        blocks: see :attr:`ARRequest.prompt_blocks`.
    """

    ids: list[int]
    embeds: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    position_delta: int = 0
    content: list[ContentSpan] = field(factory=list)
    visual: torch.Tensor | None = None
    deep: list[torch.Tensor] = field(factory=list)
    blocks: torch.Tensor | None = None

    def sent(self) -> dict[str, Any]:
        """Return it as data that can go to another process."""
        return asdict(self, recurse=False) | {"content": [(each.start, each.end, each.digest) for each in self.content]}

    @classmethod
    def received(cls, data: dict[str, Any], device: Any) -> Prompt:
        """Return what :meth:`sent` has returned. Its tensors are copies: those that were sent may be in the memory of a relay."""

        def own(value: Any, device: Any = None) -> Any:
            if isinstance(value, list):
                return [own(each, device) for each in value]
            return value.to(device, copy=True) if isinstance(value, torch.Tensor) else value

        computed = {name: own(data[name], device) for name in ("embeds", "visual", "deep")}
        planned = {name: own(data[name]) for name in ("positions", "blocks")}
        content = [ContentSpan(*each) for each in data["content"]]
        return cls(data["ids"], position_delta=data["position_delta"], content=content, **computed, **planned)


class _Reached(Exception):
    """The decoder was called."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given


def _stop(given: dict[str, Any]) -> Any:
    raise _Reached(given)


@torch.inference_mode()
def makes_masks(decoder: Decoder) -> bool:
    """Return whether a model makes masks before its decoder, for positions that attend to each other."""
    ids = torch.zeros(1, 4, dtype=torch.long, device=decoder.model.device)
    try:
        with decoder.instead(_stop):
            decoder.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    except _Reached as reached:
        mask = reached.given.get("attention_mask")
        return isinstance(mask, dict) or (mask is not None and mask.dim() > 2)
    return False


@torch.inference_mode()
def captured(
    decoder: Decoder, inputs: dict[str, Any], encoders: Encoders | None = None, sees_blocks: bool = False
) -> Prompt:
    """Return the prompt that a decoder's model makes of the inputs of its forward, which have a batch of one.

    Args:
        encoders: of the model, which keep what they make.
        sees_blocks: some of its positions attend to each other.

    Raises:
        RuntimeError: its decoder gets something that the engine has no place for.
    """
    ids: list[int] = inputs["input_ids"][0].tolist()
    blocks = blocks_of(decoder.model, inputs) if sees_blocks else None
    if blocks is None and not set(inputs) - _PLAIN:
        return Prompt(ids)
    try:
        with decoder.instead(_stop), encoders.keeping() if encoders else nullcontext():
            decoder.model(**inputs, use_cache=False)
    except _Reached as reached:
        given = {name: each for name, each in reached.given.items() if each is not None}
    if "inputs_embeds" not in given:  # it has merged nothing
        return Prompt(ids)
    embeds: torch.Tensor = given["inputs_embeds"][0]
    visual, deep = (given.pop(name, None) for name in VISUAL)
    mask = given.get("attention_mask")
    if not sees_blocks and mask is not None and (isinstance(mask, dict) or mask.dim() > 2):
        raise RuntimeError("this model makes masks for its media, which the engine cannot; choose backend=steps")
    if unknown := sorted(name for name, each in given.items() if name not in _IGNORED and each is not False):
        raise RuntimeError(f"this model's decoder gets {', '.join(unknown)} with media; choose backend=steps")
    positions, delta = _positions(given.get("position_ids"), len(embeds))
    own = None
    if len(embeds) == len(ids):
        own = decoder.model.get_input_embeddings()(inputs["input_ids"][0].clamp(min=0))
    else:
        ids = [-1] * len(embeds)
    content = [*_content(embeds, own, visual, deep or []), *_whole_blocks(embeds, blocks)]
    return Prompt(ids, embeds, positions, delta, content, None if visual is None else visual[0], deep or [], blocks)


def _positions(given: torch.Tensor | None, count: int) -> tuple[torch.Tensor | None, int]:
    """Return rotary positions ``[3, n]`` or ``[n]``, and what the next one is more than ``n``."""
    if given is None:
        return None, 0
    found = given[-3:, 0] if given.dim() == 3 else given[0]  # a fourth row in front is that of the text
    found = found.to("cpu", torch.int64)
    if torch.equal(found, torch.arange(count).expand_as(found)):
        return None, 0
    return found, int(found.max()) + 1 - count


def _content(
    embeds: torch.Tensor, own: torch.Tensor | None, visual: torch.Tensor | None, deep: Iterable[torch.Tensor]
) -> Iterable[ContentSpan]:
    """Yield the runs of positions that are not embeddings of their ids, with a digest of what they are."""
    other = torch.ones(len(embeds), dtype=torch.bool) if own is None else (embeds != own).any(-1).cpu()
    if visual is not None:
        other |= visual[0].cpu()
    edges = torch.diff(other.int(), prepend=torch.zeros(1, dtype=torch.int32), append=torch.zeros(1, dtype=torch.int32))
    for start, end in zip(
        edges.eq(1).nonzero().flatten().tolist(), edges.eq(-1).nonzero().flatten().tolist(), strict=True
    ):
        digest = hashlib.blake2b(bytes_of(embeds[start:end]), digest_size=16)
        if visual is not None:
            first, last = (int(visual[0, :edge].sum()) for edge in (start, end))
            for each in deep:
                digest.update(bytes_of(each[first:last]))
        yield ContentSpan(start, end, digest.digest())


def _whole_blocks(embeds: torch.Tensor, blocks: torch.Tensor | None) -> Iterable[ContentSpan]:
    """Yield the spans of blocks: what their positions compute depends on all of them."""
    if blocks is None:
        return
    if len(blocks) != len(embeds):
        raise RuntimeError("this model has other positions than ids; choose backend=steps")
    for number in range(int(blocks.max()) + 1):
        places = (blocks == number).nonzero()
        start, end = int(places[0]), int(places[-1]) + 1
        yield ContentSpan(start, end, hashlib.blake2b(bytes_of(embeds[start:end]), digest_size=16).digest())


def fill_extra(batch: ForwardBatch, prompt_of: Any) -> None:
    """Write into ``batch.extra`` what the decoder adds to pictures in its first layers.

    Args:
        prompt_of: returns the :class:`Prompt` of an :class:`ARRequest`.
    """
    mask: torch.Tensor | None = None
    parts: list[list[torch.Tensor]] = []
    for request, start, end, row in prompt_runs(batch):
        prompt: Prompt = prompt_of(request)
        if prompt.visual is None or not bool(prompt.visual[start:end].any()):
            continue
        if mask is None:
            mask = torch.zeros(1, len(batch.input_ids), dtype=torch.bool, device=prompt.visual.device)
            parts = [[] for _ in prompt.deep]
        mask[0, row : row + end - start] = prompt.visual[start:end]
        first, last = int(prompt.visual[:start].sum()), int(prompt.visual[:end].sum())
        for part, each in zip(parts, prompt.deep, strict=True):
            part.append(each[first:last])
    if mask is not None:
        batch.extra.update(zip(VISUAL, (mask, [torch.cat(part) for part in parts]), strict=True))


def request_of(prompt: Prompt, request_id: str, **fields: Any) -> ARRequest:
    """Return a request of the engine with a prompt."""
    return ARRequest(
        request_id,
        prompt_ids=prompt.ids,
        prompt_embeds=prompt.embeds,
        prompt_positions=prompt.positions,
        position_delta=prompt.position_delta,
        prompt_blocks=prompt.blocks,
        content=prompt.content,
        **fields,
    )
