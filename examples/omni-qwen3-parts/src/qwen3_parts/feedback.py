"""Qwen3-Omni's feedback loop with the most probable residual codes, whatever the request samples."""

from __future__ import annotations

import torch

from omni_core.api import ARRequest
from omni_qwen3.talker_feedback import TalkerFeedback


class ArgmaxCodes(TalkerFeedback):
    """The first code of a frame is sampled as usual; the code predictor's are chosen by argmax."""

    def residual_codes(
        self, hidden: torch.Tensor, first_embed: torch.Tensor, requests: list[ARRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`TalkerFeedback.residual_codes`."""
        codes: torch.Tensor
        feedback: torch.Tensor
        codes, feedback = self.model.code_predictor(hidden, first_embed, lambda logits, group: logits.argmax(-1))
        return codes, feedback
