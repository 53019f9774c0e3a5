"""Registers the parts. Light: their modules are imported only in the processes that use them."""

from __future__ import annotations

from omni_core.api import Component, Parameter, PartComponent, hookimpl


@hookimpl
def omni_model_runners() -> list[Component]:
    target = "qwen3_parts.runner:BiasedThinkerRunner.from_checkpoint"
    bias = Parameter("logit_bias", "mapping", "Added to the logits of token ids: {id: bias}")
    return [
        PartComponent("biased-thinker", target, "Qwen3-Omni's thinker with a logit bias per request", metadata=(bias,))
    ]


@hookimpl
def omni_feedback_strategies() -> list[Component]:
    target = "qwen3_parts.feedback:ArgmaxCodes"
    return [Component("argmax-codes", target, "Qwen3-Omni's residual codes by argmax")]
