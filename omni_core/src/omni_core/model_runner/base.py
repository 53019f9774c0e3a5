"""The contracts of a model: :class:`ARModel`, the :class:`ModelRunner` that drives it, its :class:`FeedbackStrategy`.

A distribution implements both runners for models of a library; a plugin overrides what is its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from omni_core.model_runner.attention import Tensor
from omni_core.model_runner.types import ARRequest, ForwardBatch, ForwardOutput, KVLayout
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage

Forward = Callable[[ForwardBatch], ForwardOutput]
"""A model's forward, or a scheduler's faster way to the same result, such as a recorded one."""


class ARModel(Protocol):
    """A network as a scheduler sees it. It is written as a plain model; paging is behind ``batch.attention``."""

    hidden_size: int
    vocab_size: int

    @property
    def kv_layout(self) -> KVLayout: ...

    def embed(self, ids: Tensor) -> Tensor:
        """``[n]`` int64 to ``[n, hidden]``."""
        ...

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Run the batch's inputs through all layers. If it reads of the batch only ids, embeddings, positions, attention and
        ``extra``, and copies no tensor to the host, a scheduler can record steps of decodes on a GPU.
        """
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """``[m, hidden]`` to ``[m, vocab]``."""
        ...


class ModelRunner(ABC):
    """Drives one model for a scheduler, which decides *which* requests compute *how many* positions. One thread calls it.

    An error of one request must be raised by a per-request method (:meth:`receive`, :meth:`emit`, :meth:`result`), so that the
    scheduler fails that request alone.

    Attributes:
        model: the network.
        device: where it computes; a ``torch.device`` where the model is written in PyTorch.
        max_context: the positions that the model was made for; a scheduler's default. ``None``: unlimited.
        kept_width: the number of values per position that are kept beside K and V for prompts that share a prefix (such as hidden
            states that a speech stage reads); see ``ForwardBatch.keep`` and :meth:`reuse`.
        output_seconds: the seconds of sound that one output stands for, where somebody will listen to it; schedulers that know deadlines
            serve the request first whose listener runs out of sound first. ``None``: nobody does.
    """

    model: ARModel
    device: Any
    max_context: int | None = None
    kept_width: int = 0
    output_seconds: float | None = None

    @abstractmethod
    def receive(self, message: IncomingMessage) -> ARRequest | None:
        """Take a message; return the request when it becomes schedulable (once), else ``None``.

        Called for every message of a request, also after it was returned (more stream chunks). A request that is returned
        with its ``finish_reason`` set is finished without a step (there was nothing to compute); so is one that is returned again,
        when the input that it waited for will not come.

        Raises:
            InvalidRequestError: the request is at fault; it alone fails.
        """

    @abstractmethod
    def execute(self, batch: ForwardBatch, forward: Forward | None = None) -> list[tuple[ARRequest, int]]:
        """Run one step: fill the inputs, forward, choose and append tokens.

        Args:
            forward: replaces ``model.forward`` in this step.

        Returns:
            Each sampled request, in the order of the batch, with its new token id. If it raises, the scheduler restores the requests
            and may run them again.
        """

    @abstractmethod
    def result(self, request: ARRequest) -> Any:
        """Return the payload data of a finished request."""

    def can_step(self, request: ARRequest) -> bool:
        """Return whether the request's next decode step has all its inputs (``False`` while it waits for a stream)."""
        return True

    def has_enough(self, request: ARRequest) -> bool:
        """Return whether so much of the request's stream waits here that those who send it should wait too."""
        return False

    def reuse(self, request: ARRequest, rows: Tensor) -> None:  # noqa: B027 - optional hook
        """Note that the first prompt positions are not computed, because K and V of an earlier request serve.

        Args:
            rows: ``[positions, kept_width]``, the kept rows of these positions, to be copied. Also called when a request is computed
                again.
        """

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        """Return this request's stream messages for a token just chosen, the last of ``request.output_ids``.

        ``finish_reason`` is set if it was the last. A request that has more to do may be given its next part here
        which clears ``finish_reason``.
        """
        return ()

    def does_not_fit(self, request: ARRequest, max_context: int) -> str:
        """Return the error message for a request that was extended beyond the scheduler's context."""
        return f"the request goes on to {request.length} tokens; the context holds {max_context}"

    def release(self, request_id: str) -> None:  # noqa: B027 - optional hook
        """Drop all state of the request: it finished, failed or was aborted. Also called for requests never returned."""


class FeedbackStrategy(ABC):
    """The model-specific part of a feedback loop, in which a step's input depends on the last step's output.

    It is built without a model, so that a config can name it, and belongs to the one runner that binds it. What it keeps of a
    request is in ``request.state``, whose type the runner of the model defines.

    Attributes:
        model: the bound network.
        device: where it computes.
    """

    model: Any
    device: Any

    def bind(self, model: ARModel, device: Any) -> None:
        """Called once by the runner, before the first request."""
        self.model, self.device = model, device

    @abstractmethod
    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        """Before the forward: write the input of each request's newest position into its row of ``batch.input_embeds``.

        Args:
            requests: ``(request, row)`` of every request whose newest generated position is computed for the first time.
        """

    @abstractmethod
    def extract_output(
        self, batch: ForwardBatch, output: ForwardOutput, requests: list[tuple[ARRequest, int]]
    ) -> dict[str, list[OutgoingMessage]]:
        """After sampling: compute codebooks and the next input. Setting ``finish_reason`` of a request ends it with this step, after its
        messages: where the whole frame says so, not the sampled token.

        Args:
            requests: ``(request, row)`` of every request that was given a token in this step and goes on.

        Returns:
            The stream messages of each request, by its id.
        """

    def prefill_forward(self, batch: ForwardBatch) -> ForwardOutput | None:
        """Run the model's own forward for a batch that holds prompts; ``None`` uses the ordinary one."""
        return None
