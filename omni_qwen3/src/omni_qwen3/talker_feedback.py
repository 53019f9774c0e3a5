"""The talker's feedback loop: each step's input is the last frame's embedding plus the next row of text.

``request.state`` is a :class:`omni_torch.runners.spoken_text.SpokenText`; a strategy reads its text and writes its feedback.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from omni_core.api import ARRequest, ForwardBatch, ForwardOutput, OutgoingMessage, SamplingParams
from omni_qwen3.code_predictor import CodePredictor, FrameState
from omni_qwen3.talker_network import Talker
from omni_torch.api import CodeChoice, FrameStrategy, Named, SpokenText

RESIDUAL_SAMPLING = SamplingParams(temperature=1.0, top_k=50, top_p=0.8)
"""The sampling settings that the reference uses for residual codes whenever the talker samples."""


def chooser(temperature: torch.Tensor | None, uniforms: torch.Tensor | None) -> CodeChoice:
    """Return a function that chooses residual codes: sampled with :data:`RESIDUAL_SAMPLING` in rows whose temperature
    is not 0.

    Args:
        temperature: ``[B]``.
        uniforms: ``[B, groups - 1]`` float64, one uniform number per code. Without both, every row is greedy.
    """
    return CodeChoice(temperature, uniforms, RESIDUAL_SAMPLING.top_k, RESIDUAL_SAMPLING.top_p)


def recordable_frame(
    predictor: CodePredictor,
    hidden: torch.Tensor,
    first_embed: torch.Tensor,
    temperature: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
) -> Callable[[], Named]:
    """Compute a whole frame, including the choice of its codes, without synchronising with the host.

    ``hidden``, ``first_embed``: see :meth:`CodePredictor.forward`; ``temperature``, ``uniforms``: see :func:`chooser`.
    """
    state, choose = FrameState(predictor, len(hidden), hidden), chooser(temperature, uniforms)

    def frame() -> Named:
        codes, feedback = predictor(hidden, first_embed, choose, state)
        return {"codes": codes, "feedback": feedback}

    return frame


class TalkerFeedback(FrameStrategy):
    """Chooses residual codes with the code predictor; the next input is the frame's summed code embeddings plus the
    next row of text.
    """

    model: Talker

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        """See :meth:`FeedbackStrategy.write_buffers`."""
        assert batch.input_embeds is not None
        for request, row in requests:
            speech: SpokenText = request.state
            assert speech.feedback is not None
            batch.input_embeds[row] = speech.feedback + speech.text_row(len(request.output_ids))

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
        return self.stream(frames, feedback, speaking, "code2wav")

    def residual_codes(
        self, hidden: torch.Tensor, first_embed: torch.Tensor, requests: list[ARRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the residual codes of ``B`` frames. Override it to choose them otherwise.

        Args:
            hidden, first_embed: see :meth:`CodePredictor.forward`.

        Returns:
            ``[B, groups - 1]`` int64 codes, and ``[B, hidden]``, the sum of the embeddings of all of the frame's codes.
        """
        predictor = self.model.code_predictor
        settings = _residual_settings(requests, predictor.groups - 1)
        if self.graphs is not None:
            build = partial(recordable_frame, predictor)
            replayed = self.graphs.run(bool(settings), build, [hidden, first_embed, *settings])
            if replayed is not None:
                return replayed["codes"], replayed["feedback"]
        there = [each.to(hidden.device) for each in settings]
        codes, feedback = predictor(hidden, first_embed, chooser(*there or (None, None)))
        return codes, feedback


def _residual_settings(requests: list[ARRequest], groups: int) -> list[torch.Tensor]:
    """Return the arguments of :func:`chooser`, or none if every row is greedy. A request samples all its codes or none."""
    drawing = [request.sampling.temperature > 0 for request in requests]
    if not any(drawing):
        return []
    temperature = torch.tensor(drawing, dtype=torch.float64) * RESIDUAL_SAMPLING.temperature
    uniforms = [[_uniform(request, group) for group in range(groups)] for request in requests]
    return [temperature, torch.tensor(uniforms, dtype=torch.float64)]


def _uniform(request: ARRequest, group: int) -> float:
    """Return the uniform number with which a residual code of a request's newest frame is sampled."""
    return request.random.uniform(len(request.output_ids), group)
