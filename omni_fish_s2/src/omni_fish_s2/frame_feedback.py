"""Fish S2's feedback loop: the fast decoder completes each frame, whose embedding is the next step's input.

:class:`Speech` is the state of a request that :class:`omni_fish_s2.semantic.SpeechRunner` keeps in ``request.state``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import define

from omni_core.api import ARRequest, FinishReason, ForwardBatch, ForwardOutput, OutgoingMessage
from omni_fish_s2.payloads import TextError
from omni_fish_s2.sampling import Draws, SpeechSampling, choose, choose_among, filters, widest
from omni_fish_s2.slow import SlowDecoder
from omni_torch.api import FrameStrategy, Graphs, Named


@define(eq=False)
class Speech:
    """The stage's state of a request, in ``request.state``.

    Attributes:
        draws: ``None`` for greedy decoding.
        turns: remaining turns of text.
        steps: tokens chosen in earlier turns.
        feedback: ``[dim]``, the embedded last frame.
        frames: sent so far.
        open: true if more turns may arrive.
        waiting: true if all turns so far are spoken and the next one has not arrived.
        ended: the reason why the last turn ended.
        error: of the text after the last turn.
    """

    sampling: SpeechSampling
    draws: Draws | None
    turns: list[torch.Tensor]
    steps: int = 0
    feedback: torch.Tensor | None = None
    frames: int = 0
    open: bool = False
    waiting: bool = False
    ended: FinishReason = "stop"
    error: TextError | None = None


def recordable_frame(
    model: SlowDecoder,
    most: int,
    hidden: torch.Tensor,
    first: torch.Tensor,
    drawing: torch.Tensor | None = None,
    numbers: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
) -> Callable[[], Named]:
    """Compute a whole frame and its embedding, including the choice of its codes, without synchronising with the host.

    Args:
        hidden, first: see :meth:`omni_fish_s2.fast.FastDecoder.forward`.
        drawing: ``[B]`` bool, true where codes are sampled; ``numbers`` and ``most``: see :func:`choose_among`;
        ``uniforms``: ``[B, codebooks - 1, codebook_size]``. Without them, every row is greedy.
    """

    def pick(logits: torch.Tensor, index: int) -> torch.Tensor:
        best = logits.argmax(-1)
        if drawing is None or numbers is None or uniforms is None:
            return best
        return torch.where(drawing, choose_among(logits, most, numbers, uniforms[:, index - 1]), best)

    def frame() -> Named:
        codes = model.fast(hidden, first, pick)
        return {"codes": codes, "feedback": model.embed_frames(first + model.config.semantic_begin, codes)}

    return frame


class FrameFeedback(FrameStrategy):
    """Chooses residual codes with the fast decoder, which completes each frame; the frame's embedding is the next
    input.
    """

    model: SlowDecoder

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        assert batch.input_embeds is not None
        for request, row in requests:
            speech: Speech = request.state
            assert speech.feedback is not None
            batch.input_embeds[row] = speech.feedback

    def extract_output(
        self, batch: ForwardBatch, output: ForwardOutput, requests: list[tuple[ARRequest, int]]
    ) -> dict[str, list[OutgoingMessage]]:
        """Complete each request's frame: ``[codebooks]`` int64 codes, streamed to ``vocoder``."""
        speaking, hidden, tokens = self.newest(output, requests)
        frames, feedback = self.residual_codes(hidden, tokens - self.model.config.semantic_begin, speaking)
        return self.stream(frames.cpu(), feedback, speaking, "vocoder")

    def residual_codes(
        self, hidden: torch.Tensor, first: torch.Tensor, requests: list[ARRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Complete ``B`` frames. Override it to choose their codes otherwise.

        Args:
            hidden, first: see :meth:`omni_fish_s2.fast.FastDecoder.forward`.

        Returns:
            ``[B, codebooks]`` int64 codes, and ``[B, dim]``, the frames' embeddings.
        """
        model = self.model
        speeches: list[Speech] = [request.state for request in requests]
        drawing = [index for index, speech in enumerate(speeches) if speech.draws is not None]
        # The step of the token that was just appended.
        numbers = [numbers_of(requests[index], len(requests[index].output_ids) - 1).codes for index in drawing]
        if self.graphs is not None:
            replayed = self._replayed(self.graphs, hidden, first, speeches, dict(zip(drawing, numbers, strict=True)))
            if replayed is not None:
                return replayed["codes"], replayed["feedback"]

        def pick(logits: torch.Tensor, index: int) -> torch.Tensor:
            codes = logits.argmax(-1)
            if drawing:
                uniforms = torch.stack([each[index - 1] for each in numbers])
                codes[drawing] = choose(logits[drawing], [speeches[each].sampling for each in drawing], uniforms)
            return codes

        frames: torch.Tensor = model.fast(hidden, first, pick)
        return frames, model.embed_frames(first + model.config.semantic_begin, frames)

    def _replayed(
        self,
        graphs: Graphs,
        hidden: torch.Tensor,
        first: torch.Tensor,
        speeches: list[Speech],
        numbers: dict[int, torch.Tensor],
    ) -> Named | None:
        """Return the sampling arguments of a batch. ``numbers``: the uniform numbers of the sampled requests, by index."""
        model = self.model
        inputs, width, most = [hidden, first], model.config.codebook_size, 0
        if numbers:
            params = [speech.sampling for speech in speeches]
            most = widest([params[index] for index in numbers], width)
            unused = torch.zeros(model.config.codebooks - 1, width)
            drawing = torch.tensor([index in numbers for index in range(len(params))])
            uniforms = torch.stack([numbers.get(index, unused) for index in range(len(params))])
            inputs += [drawing, filters(params, width), uniforms]
        return graphs.run(most, partial(recordable_frame, model, most), inputs)


def numbers_of(request: ARRequest, step: int) -> Any:
    """Return the random numbers of a step of the current turn."""
    speech: Speech = request.state
    assert speech.draws is not None
    return speech.draws.at(speech.steps + step)
