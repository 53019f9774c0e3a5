"""A decoder of transformers on the engine's contract: its own modules, with the engine's attention in place of theirs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface
from transformers.modeling_outputs import BaseModelOutputWithPast

from omni_core.api import ForwardBatch, ForwardOutput, KVLayout
from omni_torch.api import ALONE, FewRowsLinear, TensorParallel, few_rows_linear
from omni_transformers.words.engine_stack import KernelSteps

NAME = "omni-engine"
"""The attention function, in transformers' table. It has no mask function, so that no mask is made."""

_attend: ContextVar[Callable[..., torch.Tensor]] = ContextVar("attend")
_instead: ContextVar[dict[Any, Callable[[dict[str, Any]], Any]]] = ContextVar("instead", default={})  # noqa: B039 - never changed


def _attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **given: Any
) -> tuple[torch.Tensor, None]:
    return _attend.get()(module, query, key, value, mask, given), None


AttentionInterface.register(NAME, _attention)


@contextmanager
def attending(attend: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Let ``attend(module, query, key, value, mask, given)`` compute the attention of layers that call :data:`NAME`, in this thread."""
    token = _attend.set(attend)
    try:
        yield
    finally:
        _attend.reset(token)


class Door:
    """A door in front of a module: in a thread, what is done when its model calls it.

    Attributes:
        module: the module.
        run: its own forward, past the door.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        own = module.forward
        self.run: Callable[..., Any] = getattr(own, "past_the_door", own)
        if self.run is own:
            signature = inspect.signature(own)

            @wraps(own)
            def forward(*given: Any, **named: Any) -> Any:
                instead = _instead.get().get(module)
                if instead is None:
                    return own(*given, **named)
                bound = signature.bind(*given, **named).arguments
                further = bound.pop("kwargs", {})
                return instead({**bound, **further})

            forward.past_the_door = own  # type: ignore[attr-defined]
            module.forward = forward

    @contextmanager
    def instead(self, call: Callable[[dict[str, Any]], Any]) -> Iterator[None]:
        """Call ``call`` with the module's arguments by name in place of it, in this thread."""
        token = _instead.set({**_instead.get(), self.module: call})
        try:
            yield
        finally:
            _instead.reset(token)


class Decoder(Door):
    """The decoder inside a model.

    Attributes:
        model: the model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        super().__init__(model.get_decoder())

    def attend_by(self, name: str) -> None:
        """Let its layers call an attention function of transformers' table."""
        self.module.set_attn_implementation(name)


class Decoded(BaseModelOutputWithPast):
    """A decoder's output: hidden states, and nothing else of what it may have."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


def attended(
    attention: Callable[..., torch.Tensor],
    layer: int,
    width: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """Compute the attention of a layer of transformers by the engine's, whose heads have ``width``.

    Args:
        query, key, value: ``[1, heads, n, d]``.

    Returns:
        ``[1, n, heads, d]``.
    """
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    if q.shape[2] == v.shape[2] == width:
        return attention(layer, q, k, v, scale).unsqueeze(0)
    scale = q.shape[2] ** -0.5 if scale is None else scale  # zeros change no product
    q, k, wide = (F.pad(each, (0, width - each.shape[2])) for each in (q, k, v))
    return attention(layer, q, k, wide, scale)[..., : v.shape[2]].unsqueeze(0)


def _drop(module: nn.Module, unneeded: Callable[[nn.Module], bool], past: nn.Module | None = None) -> None:
    """Replace modules inside ``module`` by empty ones; those inside ``past`` stay."""
    for name, child in [*module.named_children()]:
        if unneeded(child):
            setattr(module, name, nn.Identity())
        elif child is not past:
            _drop(child, unneeded, past)


class EngineModel(nn.Module):
    """An :class:`omni_core.api.ARModel` of a model of transformers.

    Args:
        model: whole.
        decoder: its decoder.
        layout: of its keys and values.
        vocab_size: the width of its logits.
        plain_head: true if the logits are those of its output embeddings alone; else the model's own code after the decoder computes them.
        parallel: the ranks among which it is split.

    Attributes:
        kernels: compute steps by installed kernels; ``None``: the modules compute all.
        sees_blocks: some positions of its prompts attend to each other.
    """

    kernels: KernelSteps | None = None

    def __init__(
        self,
        model: Any,
        decoder: Decoder,
        layout: KVLayout,
        vocab_size: int,
        *,
        plain_head: bool,
        parallel: TensorParallel = ALONE,
    ) -> None:
        super().__init__()
        self.model, self.decoder, self.parallel = model, decoder, parallel
        self._embedding, self._head = model.get_input_embeddings(), model.get_output_embeddings()
        alone = type(self._head) is nn.Linear and parallel.size == 1
        if alone and few_rows_linear.replaced(self._head.weight.device.type, layout.dtype):
            self._head = FewRowsLinear(self._head.weight.detach(), self._head.bias)
        self.kv_layout, self.vocab_size = layout, vocab_size
        self.hidden_size = int(self._embedding.weight.shape[1])
        self.plain_head = plain_head
        self.sees_blocks = any(form is not None and form.blocks for form in layout.forms)

    def drop_decoder(self) -> None:
        """Forget what computes after the embeddings: prompts can be made, and nothing else."""
        self.kernels = None
        self._head = nn.Identity()
        kept = set(self._embedding.modules())
        _drop(self.decoder.module, lambda each: not kept & set(each.modules()))
        head = self.model.get_output_embeddings()
        _drop(self.model, lambda each: each is head)

    def drop_encoders(self) -> None:
        """Forget what computes before the decoder: requests can be answered, and no prompt with media made."""
        if self.plain_head:
            kept = {self.decoder.module, *self._embedding.modules(), *self._head.modules()}
            _drop(self.model, lambda each: not kept & set(each.modules()), self.decoder.module)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """See :class:`omni_core.api.ARModel`."""
        embeds: torch.Tensor = self._embedding(ids)
        return embeds

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Compute packed rows. ``batch.extra``: further arguments of the decoder."""
        assert batch.input_embeds is not None
        if self.kernels is not None and (computed := self.kernels.run(batch)) is not None:
            return computed
        attention, width = batch.attention, self.kv_layout.head_dim

        def attend(
            module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, given: dict[str, Any]
        ) -> torch.Tensor:
            return attended(attention, module.layer_idx, width, query, key, value, given.get("scaling"))

        with attending(attend):
            output = self.decoder.run(
                inputs_embeds=batch.input_embeds.unsqueeze(0),
                position_ids=batch.positions.unsqueeze(-2),
                use_cache=False,
                **batch.extra,
            )
        return ForwardOutput(output.last_hidden_state[0])

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See :class:`omni_core.api.ARModel`."""
        if self.plain_head:
            logits: torch.Tensor = self._head(hidden)
            return logits
        rows = len(hidden)
        with self.decoder.instead(lambda given: Decoded(last_hidden_state=hidden.unsqueeze(0))):
            output = self.model(
                inputs_embeds=hidden.new_zeros(1, rows, self.hidden_size),
                position_ids=torch.arange(rows, device=hidden.device).unsqueeze(0),
                use_cache=False,
            )
        own: torch.Tensor = output.logits[0]
        return own
