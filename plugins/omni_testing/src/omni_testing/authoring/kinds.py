"""Kinds of new plugins: one template per kind, with its hook and its dependencies."""

from __future__ import annotations

from attrs import frozen

TORCH_LEVEL = "torch-1"
"""Levels that the entry point of a plugin that imports ``omni_torch.api`` declares."""


@frozen
class Kind:
    """One kind of component that a new plugin can provide.

    Attributes:
        hook: the name of the hook that it implements.
        summary: one line about the template's component.
        needs: distributions that it depends on beside omni-core.
        also: further hooks that it implements, for a component of the same name.
    """

    hook: str
    summary: str
    needs: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def hooks(self) -> tuple[str, ...]:
        """Every hook that it implements."""
        return (self.hook, *self.also)


KINDS: dict[str, Kind] = {
    "relay": Kind("omni_relays", "bytes from process to process over Unix sockets", needs=("omni-relay-kit",)),
    "scheduler": Kind("omni_schedulers", "serves the most urgent request first"),
    "pipeline": Kind("omni_pipelines", "answers with the most frequent words of a message"),
    "model": Kind(
        "omni_pipelines",
        "a small decoder over bytes, from nn.Module to text",
        needs=("omni-torch", "attrs>=23.2", "safetensors>=0.8", "torch>=2.6"),
        also=("omni_model_runners",),
    ),
    "model-runner": Kind(
        "omni_model_runners", "token ids in, token ids out, streamed", needs=("omni-torch", "torch>=2.6")
    ),
    "feedback": Kind(
        "omni_feedback_strategies", "residual codebooks, their sum fed back", needs=("omni-torch", "torch>=2.6")
    ),
    "projection": Kind("omni_payload_projections", "hands on the text of messages, without their media"),
    "kernel": Kind("omni_kernels", "root mean square normalisation in PyTorch", needs=("omni-torch", "torch>=2.6")),
    "launcher": Kind("omni_launchers", "gives the GPUs of its settings to the units of a run"),
    "command": Kind("omni_commands", "finds components of installed plugins"),
}
"""By the name that ``omni plugins new --kind`` takes; each has a folder of that name in ``templates/``."""
