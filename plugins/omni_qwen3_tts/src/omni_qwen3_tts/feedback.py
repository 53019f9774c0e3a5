"""The talker's feedback loop: each step's input is the last frame's embedding plus the next row of text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from omni_core.api import ARModel, ARRequest, ForwardBatch, ForwardOutput, OutgoingMessage
from omni_qwen3_tts.asking import Residual
from omni_qwen3_tts.code_predictor import CodePredictor, FrameState
from omni_qwen3_tts.talker import Speech
from omni_qwen3_tts.talker_network import Talker
from omni_torch.api import CodeChoice, FrameStrategy, Named

VOCODER = "code2wav"

MOST_RECORDED = 4
"""Values of the filters that frames are recorded with: requests may ask for any."""


def recordable_frame(
    predictor: CodePredictor,
    filters: tuple[int, float],
    hidden: torch.Tensor,
    first_embed: torch.Tensor,
    temperature: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
) -> Callable[[], Named]:
    """Compute whole frames, including the choice of their codes, without synchronising with the host.

    Args:
        filters: top-k and top-p, of all frames.
        hidden, first_embed: see :meth:`CodePredictor.forward`.
        temperature: ``[B]``, 0 for greedy rows; ``uniforms``: ``[B, groups - 1]`` float64. Without both, every row is greedy.
    """
    state, choose = FrameState(predictor, len(hidden), hidden), CodeChoice(temperature, uniforms, *filters)

    def frame() -> Named:
        codes, feedback = predictor(hidden, first_embed, choose, state)
        return {"codes": codes, "feedback": feedback}

    return frame


class TalkerFeedback(FrameStrategy):
    """Chooses residual codes with the code predictor; the next input is the frame's summed code embeddings plus the
    next row of text.
    """

    model: Talker

    def bind(self, model: ARModel, device: torch.device) -> None:
        """See :meth:`FeedbackStrategy.bind`."""
        super().bind(model, device)
        self._recorded: set[tuple[int, float]] = set()

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        """See :meth:`FeedbackStrategy.write_buffers`."""
        assert batch.input_embeds is not None
        for request, row in requests:
            speech: Speech = request.state
            assert speech.feedback is not None
            batch.input_embeds[row] = speech.feedback + speech.next_row(len(request.output_ids))

    def extract_output(
        self, batch: ForwardBatch, output: ForwardOutput, requests: list[tuple[ARRequest, int]]
    ) -> dict[str, list[OutgoingMessage]]:
        """Complete each request's frame: ``[groups]`` int64 codes, streamed to ``code2wav``."""
        speaking, hidden, first = self.newest(output, requests)
        residual, feedback = self.residual_codes(hidden, self.model.embed(first), speaking)
        frames = torch.cat([first.unsqueeze(1), residual], dim=1).cpu()
        for request, frame in zip(speaking, frames, strict=True):
            if bool((frame < 0).any()):
                raise FloatingPointError(
                    f"request {request.request_id}: frame {len(request.output_ids)} has no largest logit for one of its residual "
                    "codes; check for NaN in the weights and for overflow of their dtype"
                )
        messages = self.stream(frames, feedback, speaking, VOCODER)
        for request in speaking:
            speech: Speech = request.state
            if speech.context is not None and speech.frames == 1:
                context = OutgoingMessage(request.request_id, "stream", speech.context, VOCODER)
                messages[request.request_id].insert(0, context)
        return messages

    def residual_codes(
        self, hidden: torch.Tensor, first_embed: torch.Tensor, requests: list[ARRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the residual codes of ``B`` frames. Override it to choose them otherwise.

        Args:
            hidden, first_embed: see :meth:`CodePredictor.forward`.

        Returns:
            ``[B, groups - 1]`` int64 codes, and ``[B, hidden]``, the sum of the embeddings of all of the frame's codes.
        """
        kinds: dict[tuple[int, float], list[int]] = {}
        for row, request in enumerate(requests):
            kinds.setdefault(_filters(request), []).append(row)
        if len(kinds) == 1:
            return self._alike(hidden, first_embed, requests, next(iter(kinds)))
        codes, feedback = [], []
        for filters, rows in kinds.items():
            made = self._alike(hidden[rows], first_embed[rows], [requests[row] for row in rows], filters)
            codes.append(made[0])
            feedback.append(made[1])
        back = torch.tensor([row for rows in kinds.values() for row in rows]).argsort().to(hidden.device)
        return torch.cat(codes)[back], torch.cat(feedback)[back]

    def _alike(
        self, hidden: torch.Tensor, first_embed: torch.Tensor, requests: list[ARRequest], filters: tuple[int, float]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the codes of frames with the same top-k and top-p."""
        predictor = self.model.code_predictor
        settings = _settings(requests, predictor.groups - 1)
        if len(self._recorded) < MOST_RECORDED:
            self._recorded.add(filters)
        if self.graphs is not None and filters in self._recorded:
            build = partial(recordable_frame, predictor, filters)
            replayed = self.graphs.run((bool(settings), filters), build, [hidden, first_embed, *settings])
            if replayed is not None:
                return replayed["codes"], replayed["feedback"]
        temperature, uniforms = [each.to(hidden.device) for each in settings] or (None, None)
        codes, feedback = predictor(hidden, first_embed, CodeChoice(temperature, uniforms, *filters))
        return codes, feedback


def _residual(request: ARRequest) -> Residual:
    speech: Speech = request.state
    return speech.residual


def _filters(request: ARRequest) -> tuple[int, float]:
    """Return top-k and top-p; of a greedy request those that change nothing."""
    residual = _residual(request)
    return (residual.top_k, residual.top_p) if residual.temperature > 0 else (0, 1.0)


def _settings(requests: list[ARRequest], groups: int) -> list[torch.Tensor]:
    """Return temperatures and uniform numbers of :class:`CodeChoice`, or none if every row is greedy."""
    temperatures = [_residual(request).temperature for request in requests]
    if not any(temperatures):
        return []
    uniforms = [
        [request.random.uniform(len(request.output_ids), group) for group in range(groups)] for request in requests
    ]
    return [torch.tensor(temperatures, dtype=torch.float64), torch.tensor(uniforms, dtype=torch.float64)]
