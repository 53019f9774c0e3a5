"""The data that schedulers and model runners share: a request of an autoregressive stage, a batch, a step's output.

Tensors are the model's own: the core neither imports nor assumes a tensor library.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from attrs import define, field, frozen

from omni_core.model_runner.attention import AttentionForm, PagedAttention, Tensor
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import OutgoingMessage


class RandomStream:
    """A counter-based random number generator: the number at ``(seed, counters)`` is always the same.

    A step that is computed again (after a preemption, or after another request of its batch failed) therefore draws the same
    numbers. The mixing function is SplitMix64 (Steele, Lea and Flood, 2014).
    """

    def __init__(self, seed: int | None = None, stream: int = 0) -> None:
        self.seed = secrets.randbits(63) if seed is None else seed
        self.stream = stream

    def uniform(self, *counters: int) -> float:
        """Return a number in [0, 1) with 53 random bits."""
        state = self.seed & _MASK
        for counter in (*counters, *([self.stream] if self.stream else []), len(counters)):
            state = (state + 0x9E3779B97F4A7C15 * (counter + 1)) & _MASK
            state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
            state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
            state ^= state >> 31
        return (state >> 11) * 2.0**-53


_MASK = 2**64 - 1

FinishReason = Literal["stop", "length", "abort"]
"""End of a request: by itself, at its most tokens, or given up."""


@frozen(kw_only=True)
class SamplingParams:
    """The sampling parameters of one request. ``temperature == 0`` is greedy.

    Order of application, as in transformers' logits processors: repetition penalty over the request's *generated* ids (and its prompt
    ids where ``penalize_prompt``), suppressed ids, temperature, top-k, top-p, min-p, draw.

    Attributes:
        temperature: >= 0.
        top_k: 0 means off.
        top_p: 1.0 means off.
        min_p: 0.0 means off.
        repetition_penalty: 1.0 means off; it applies in greedy decoding too.
        suppressed_ids: never chosen.
        stop_ids: choosing one finishes the request with ``stop``; the id is kept in ``output_ids``.
        max_new_tokens: after this many tokens the request finishes with ``length``.
        seed: seeds the request's own random numbers; ``None`` draws a fresh seed.
        logprobs: so many likely ids of each position are kept with their log probabilities in ``ARRequest.logprobs``, beside the
            chosen one; ``None``: nothing is kept.
        penalize_prompt: true if the repetition penalty also applies to the prompt's ids (transformers' rule for prompts of ids).
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
    logprobs: int | None = None
    penalize_prompt: bool = True


@frozen
class KVLayout:
    """The KV cache of a model per token: ``layers`` pairs of K and V of shape ``[kv_heads, head_dim]`` in ``dtype``.

    ``heads`` is the number of query heads, for schedulers that set up their attention before the first query; 0: unknown.
    ``forms`` says how each layer attends, ``None`` for a plain one; empty: all are plain. ``memory``: its layers have cross-attention too,
    to the first positions of a request (:attr:`ARRequest.memory`).
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: Any
    heads: int = 0
    forms: Sequence[AttentionForm | None] = ()
    memory: bool = False

    @property
    def form_names(self) -> list[str]:
        """The differences of any layer from plain attention, in words for messages; empty: all are plain."""
        named = {name for form in self.forms if form is not None for name in form.names}
        return sorted(named | ({"cross-attention"} if self.memory else set()))


class Constraint(Protocol):
    """The set of ids that may follow in the output of a request, as a function of its ids: a step that failed is computed again."""

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call ``call`` in another thread once it is made, or cannot be. A request is admitted then."""

    def check(self) -> None:
        """Wait until it is made.

        Raises:
            InvalidRequestError: it cannot be.
        """

    def advance(self, output_ids: Sequence[int]) -> None:
        """Begin to compute what may follow these ids, beside the steps."""

    def allowed(self, output_ids: Sequence[int]) -> Tensor | None:
        """Return the ids that may follow, ``[vocab]`` bool on the CPU; ``None``: all. Waits for what :meth:`advance` has begun.

        Raises:
            InvalidRequestError: the work for it is over the bounds.
        """


@frozen
class ContentSpan:
    """The prompt positions ``start`` to ``end`` (exclusive) that stand for a piece of content, such as an image.

    ``digest`` is a cryptographic hash of everything that determines the model's input there beside token ids and rotary positions:
    equal digests mean equal inputs.
    """

    start: int
    end: int
    digest: bytes


@define(eq=False)
class ARRequest:
    """One request inside an autoregressive stage.

    Attributes:
        request_id, request: the client's request and its parameters (without inputs).
        prompt_ids: one id per prompt position, placeholders included (``len`` is the prompt's length).
        sampling: its sampling parameters.
        prompt_embeds: ``[P, hidden]`` inputs for the prompt, replacing ``embed(prompt_ids)``; or ``None``.
        prompt_positions: rotary positions, ``[P]`` or ``[3, P]``, int64 or (between whole numbers) float32; ``None`` means ``arange(P)``.
        position_delta: the rotary position of a generated token is its index in the sequence plus this (mRoPE's delta).
        state: the runner's own data of the request. Dropped with the request.
        output_ids: generated ids so far.
        output_embeds: inputs of the generated positions that have been fed, ``[hidden]`` each, kept by runners whose
            inputs are not ``embed(output_ids)``, so that a preempted request can be computed again; else empty.
        computed: the number of positions whose K and V are in the cache.
        finish_reason: set when it is finished.
        random: the request's own random numbers, so that its output does not depend on the rest of the batch.
        seen_ids: the ids that its repetition penalty has seen, as the sampler keeps them; an object with ``restart()``.
        content: the content of the prompt's placeholders, so that a scheduler can share equal prefixes; empty: ids only.
            ``None`` beside ``prompt_embeds``: ids do not tell two prompts apart, so nothing is shared.
        messages: the stream messages of the newest step that a feedback loop's runner has not yet emitted.
        priority: higher is served sooner; 0 is the default.
        memory: the first positions of the prompt that only cross-attention sees, such as those of an encoder's output; a stage before
            or the runner computes their keys and values. The other positions see each other alone.
        constraint: what its ids are held to; ``None``: they are free.
        logprobs: of each id of ``output_ids``, where they are asked for, ``(id, log probability)``: its own first, then those of the
            likeliest ids, the likeliest first.
        prompt_blocks: ``[P]`` int64 on the CPU: positions with one number attend to each other in layers that have blocks; -1: plainly
            causal. ``content`` must cover each block from its first position to its last.
    """

    request_id: str
    request: OmniRequest
    prompt_ids: list[int]
    sampling: SamplingParams
    prompt_embeds: Tensor | None = None
    prompt_positions: Tensor | None = None
    position_delta: float = 0
    state: Any = None
    output_ids: list[int] = field(factory=list)
    output_embeds: list[Tensor] = field(factory=list)
    computed: int = 0
    finish_reason: FinishReason | None = None
    random: RandomStream = field(factory=RandomStream)
    seen_ids: Any = None
    content: Sequence[ContentSpan] | None = None
    priority: int = 0
    messages: list[OutgoingMessage] = field(factory=list)
    memory: int = 0
    prompt_blocks: Tensor | None = None
    constraint: Constraint | None = None
    logprobs: list[list[tuple[int, float]]] = field(factory=list)

    @property
    def length(self) -> int:
        """The number of known positions: the prompt and every generated id."""
        return len(self.prompt_ids) + len(self.output_ids)


@define(eq=False)
class ForwardBatch:
    """One step's work: ``n`` tokens of several requests, packed one request after the other.

    Attributes:
        requests: the requests, in packing order.
        starts: for each request, the index of its first token of this step within its sequence.
        lengths: for each request, the number of positions that this step computes (1 for a decode step).
        input_ids: ``[n]`` int64 ids, -1 where only an embedding exists.
        input_embeds: ``[n, hidden]``; filled by the runner before the forward.
        positions: ``[n]`` or ``[3, n]`` rotary positions: int64, or float32 if those of any request are no whole numbers.
        attention: the paged attention of this batch; layers call it.
        sample_rows: ``[m]`` int64 row of each request whose next token is chosen in this step (its last known position).
        sampled: the indices into ``requests`` that ``sample_rows`` belong to.
        extra: further inputs of the model from the runner (such as deepstack features).
        keep: stores the rows of a runner with ``kept_width``, ``[n, kept_width]``, called once per step; ``None``: not kept.
    """

    requests: list[ARRequest]
    starts: list[int]
    lengths: list[int]
    input_ids: Tensor
    input_embeds: Tensor | None
    positions: Tensor
    attention: PagedAttention
    sample_rows: Tensor
    sampled: list[int]
    extra: dict[str, Any] = field(factory=dict)
    keep: Callable[[Tensor], None] | None = None


@define(eq=False)
class ForwardOutput:
    """A model's output: ``hidden`` ``[n, hidden]`` after the final norm; ``captured``: raw output of some layers, each ``[n, hidden]``.

    ``captured[k]`` is the output of layer ``k - 1`` (``captured[0]`` would be the input), as transformers counts
    ``hidden_states``.
    """

    hidden: Tensor
    captured: dict[int, Tensor] = field(factory=dict)
