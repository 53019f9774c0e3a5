"""The nouns that engines and model runners share: a request in an autoregressive stage, a batch, a step's output.

This room needs torch (``pip install omni-core[torch]``); of the rest of the core, only
:mod:`omni_torch.vocoder`, what is imported where tensors lie on a GPU, and the conformance suites do.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import torch
from attrs import define, field, frozen

from omni_core.protocol.messages import OmniRequest


class RandomStream:
    """Uniform random numbers by position instead of by state: the number at ``(seed, counters)`` is always the same.

    So a step that is computed again (after a preemption, or after a neighbour failed) draws what it drew before. The mixing
    function is SplitMix64 (Steele, Lea and Flood, 2014).

    Args:
        stream: tells apart the stages that draw by the same seed, so that their numbers are independent.
    """

    def __init__(self, seed: int | None = None, stream: int = 0) -> None:
        self.seed = secrets.randbits(63) if seed is None else seed
        self.stream = stream

    def uniform(self, *counters: int) -> float:
        """A number in [0, 1) with 53 random bits."""
        state = self.seed & _MASK
        for counter in (*counters, *([self.stream] if self.stream else []), len(counters)):
            state = (state + 0x9E3779B97F4A7C15 * (counter + 1)) & _MASK
            state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
            state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
            state ^= state >> 31
        return (state >> 11) * 2.0**-53


_MASK = 2**64 - 1

FinishReason = Literal["stop", "length", "abort"]


@frozen(kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen. ``temperature == 0`` is greedy.

    Order, as in transformers' logits processors: repetition penalty over the request's *generated* ids (and its prompt
    ids where ``penalize_prompt``), suppressed ids, temperature, top-k, top-p, min-p, draw.

    Attributes:
        temperature: >= 0. top_k: 0 means off. top_p: 1.0 means off. min_p: 0.0 means off.
        repetition_penalty: 1.0 means off; it applies in greedy decoding too.
        suppressed_ids: never chosen.
        stop_ids: choosing one finishes the request with ``stop``; the id is kept in ``output_ids``.
        max_new_tokens: at most so many tokens, then ``length``.
        seed: seeds the request's own random numbers; ``None`` draws a fresh seed.
        penalize_prompt: whether the repetition penalty also sees the prompt's ids (transformers' rule for prompts of ids).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    suppressed_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    max_new_tokens: int = 1024
    seed: int | None = None
    penalize_prompt: bool = True


@frozen
class KVLayout:
    """What a model keeps per token: ``layers`` pairs of K and V of shape ``[kv_heads, head_dim]`` in ``dtype``.

    ``heads``: how many query heads attend to them, for schedulers that prepare their attention before they see a query; 0: unsaid.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    heads: int = 0


class SeenIds:
    """The distinct ids that a request's repetition penalty sees, in a buffer that grows with its output."""

    def __init__(self, prompt_ids: Iterable[int], vocab_size: int) -> None:
        # A placeholder that stands for an embedding (-1) is no token of the vocabulary.
        ids = sorted({token for token in prompt_ids if 0 <= token < vocab_size})
        self._known = set(ids)
        self._buffer = torch.zeros(max(64, 2 * len(ids)), dtype=torch.int64)
        self._buffer[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
        self._read = 0

    def including(self, output_ids: list[int]) -> torch.Tensor:
        """The ids, those of ``output_ids`` that came since the last call included."""
        for token in output_ids[self._read :]:
            if token in self._known:
                continue
            count = len(self._known)
            if count == len(self._buffer):
                self._buffer = torch.cat([self._buffer, torch.zeros_like(self._buffer)])
            self._buffer[count] = token
            self._known.add(token)
        self._read = len(output_ids)
        return self._buffer[: len(self._known)]

    def restart(self) -> None:
        """The request's output begins anew; what was seen stays."""
        self._read = 0


@frozen
class ContentSpan:
    """Prompt positions ``start`` up to ``end`` (exclusive) stand for a piece of content, such as an image.

    ``digest`` is a cryptographic hash of all that decides what the model makes of the content beside token ids and rotary
    positions: equal digests mean equal inputs.
    """

    start: int
    end: int
    digest: bytes


@define(eq=False)
class ARRequest:
    """One request inside an autoregressive stage.

    Attributes:
        request_id, request: whose it is, and its parameters (without inputs).
        prompt_ids: one id per prompt position, placeholders included (``len`` is the prompt's length).
        sampling: how its tokens are chosen.
        prompt_embeds: ``[P, hidden]`` inputs for the prompt, replacing ``embed(prompt_ids)``; or ``None``.
        prompt_positions: rotary positions, ``[P]`` or ``[3, P]``, int64 or (between whole numbers) float32; ``None`` means ``arange(P)``.
        position_delta: the rotary position of a generated token is its index in the sequence plus this (mRoPE's delta).
        state: whatever the runner keeps for the request. Dropped with the request.
        output_ids: generated ids so far.
        output_embeds: inputs of the generated positions that have been fed, ``[hidden]`` each, kept by runners whose
            inputs are not ``embed(output_ids)``, so that a preempted request can be computed again; else empty.
        computed: how many positions have their K and V in the cache.
        finish_reason: set when it is finished.
        random: the request's own random numbers, so that its output does not depend on its neighbours.
        seen_ids: what its repetition penalty has seen; made and kept up to date by sampling.
        content: what stands behind the prompt's placeholders, so that an engine may share what equal prompts begin with;
            empty: nothing but ids. ``None`` beside ``prompt_embeds`` means that ids do not tell two prompts apart, so nothing
            is shared.
        priority: the higher, the sooner it is served; 0 is ordinary.
    """

    request_id: str
    request: OmniRequest
    prompt_ids: list[int]
    sampling: SamplingParams
    prompt_embeds: torch.Tensor | None = None
    prompt_positions: torch.Tensor | None = None
    position_delta: float = 0
    state: Any = None
    output_ids: list[int] = field(factory=list)
    output_embeds: list[torch.Tensor] = field(factory=list)
    computed: int = 0
    finish_reason: FinishReason | None = None
    random: RandomStream = field(factory=RandomStream)
    seen_ids: SeenIds | None = None
    content: Sequence[ContentSpan] | None = None
    priority: int = 0

    @property
    def length(self) -> int:
        """Positions known so far: the prompt and every generated id."""
        return len(self.prompt_ids) + len(self.output_ids)

    def extend(self, ids: list[int], embeds: torch.Tensor | None = None) -> None:
        """Go on after an end: what was generated and fed becomes prompt, and ``ids`` follow it (a next turn, a next sentence).

        The newest generated id, whose position was never computed, is dropped; put it first in ``ids`` to keep it. Cached
        positions stay valid. ``max_new_tokens`` counts anew; a repetition penalty remembers what it has seen; random numbers are
        new ones, by the same seed.

        Args:
            embeds: ``[len(ids), hidden]``: required where the prompt has embeddings, else ``None``.

        Raises:
            ValueError: embeddings for some positions only, or not one per id.
        """
        fed = self.output_ids[:-1]
        if (embeds is None) != (self.prompt_embeds is None) or (embeds is not None and len(embeds) != len(ids)):
            raise ValueError("extend: embeddings are given for every position of a request, or for none")
        if self.prompt_embeds is None and self.output_embeds:
            raise ValueError("extend: a request whose outputs are fed as embeddings needs a prompt of embeddings")
        if self.prompt_embeds is not None and len(self.output_embeds) != len(fed):
            raise ValueError("extend: a prompt of embeddings cannot go on after outputs that are fed as ids")
        if self.prompt_positions is not None:
            start = len(self.prompt_ids) + self.position_delta
            tail = torch.arange(len(fed) + len(ids)) + start
            self.prompt_positions = torch.cat(
                [self.prompt_positions, tail.expand(*self.prompt_positions.shape[:-1], -1)], dim=-1
            )
        if self.prompt_embeds is not None and embeds is not None:
            self.prompt_embeds = torch.cat(
                [self.prompt_embeds, *[each.unsqueeze(0) for each in self.output_embeds], embeds]
            )
        if self.seen_ids is not None:
            self.seen_ids.restart()
        self.random = RandomStream(int(self.random.uniform(self.length, 0, 0) * 2**53), self.random.stream)
        self.prompt_ids = [*self.prompt_ids, *fed, *ids]
        self.output_ids, self.output_embeds = [], []
        self.finish_reason = None


class PagedAttention(Protocol):
    """Causal attention of a batch's packed tokens over each request's own cached tokens."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        """Store ``key`` and ``value`` (``[n, kv_heads, head_dim]``) and return ``[n, heads, head_dim]`` for ``query``.

        ``scale`` defaults to ``head_dim ** -0.5``.
        """
        ...


class CacheAttention(ABC):
    """A :class:`PagedAttention` over a cache that layers may write themselves, so that one pass can make keys and put them there.

    A layer calls it as any other, or writes to :meth:`place` and calls :meth:`attend`. A scheduler whose attention keeps its cache
    to itself offers the call alone.
    """

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        """See :class:`PagedAttention`."""
        slots, keys, values = self.place(layer)
        keys.index_copy_(0, slots, key)
        values.index_copy_(0, slots, value)
        return self.attend(layer, query, scale)

    @abstractmethod
    def place(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where this step's keys and values of a layer belong.

        Returns:
            ``[n]`` int64, a slot of its own for each of the step's tokens; and the layer's keys and values,
            ``[slots, kv_heads, head_dim]`` each, to be written at these slots and nowhere else.
        """

    @abstractmethod
    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        """``[n, heads, head_dim]`` for ``query``, once this step's keys and values are in their place."""


@define(eq=False)
class ForwardBatch:
    """One step's work: ``n`` tokens of several requests, packed one request after the other.

    Attributes:
        requests: the requests, in packing order.
        starts: for each request, the index of its first token of this step within its sequence.
        lengths: for each request, how many of its positions this step computes (1 for a decode step).
        input_ids: ``[n]`` int64 ids, -1 where only an embedding exists.
        input_embeds: ``[n, hidden]``; filled by the runner before the forward.
        positions: ``[n]`` or ``[3, n]`` rotary positions: int64, or float32 if those of any request are no whole numbers.
        attention: the paged attention of this batch; layers call it.
        sample_rows: ``[m]`` int64 row of each request whose next token is chosen in this step (its last known position).
        sampled: the indices into ``requests`` that ``sample_rows`` belong to.
        extra: what a runner's ``before_forward`` hands to its model (such as deepstack features).
        keep: where a runner with ``kept_width`` puts its rows, ``[n, kept_width]``, once per step; ``None``: nobody keeps them.
    """

    requests: list[ARRequest]
    starts: list[int]
    lengths: list[int]
    input_ids: torch.Tensor
    input_embeds: torch.Tensor | None
    positions: torch.Tensor
    attention: PagedAttention
    sample_rows: torch.Tensor
    sampled: list[int]
    extra: dict[str, Any] = field(factory=dict)
    keep: Callable[[torch.Tensor], None] | None = None


@define(eq=False)
class ForwardOutput:
    """A model's answer: ``hidden`` ``[n, hidden]`` after the final norm; ``captured``: raw output of some layers, each ``[n, hidden]``.

    ``captured[k]`` is the output of layer ``k - 1`` (``captured[0]`` would be the input), as transformers counts
    ``hidden_states``.
    """

    hidden: torch.Tensor
    captured: dict[int, torch.Tensor] = field(factory=dict)


class ARModel(Protocol):
    """What an engine needs of a model. A model is written as a model; paging hides behind ``batch.attention``."""

    hidden_size: int
    vocab_size: int

    @property
    def kv_layout(self) -> KVLayout: ...

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """``[n]`` int64 to ``[n, hidden]``."""
        ...

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """The batch's inputs through all layers. If it reads of the batch only ids, embeddings, positions, attention and ``extra``, and
        asks no tensor for its values, an engine can record steps of decodes on a GPU.
        """
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[m, hidden]`` to ``[m, vocab]``."""
        ...
