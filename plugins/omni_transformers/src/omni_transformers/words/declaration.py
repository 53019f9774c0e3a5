"""The pipeline of a model that writes text. Imports no torch."""

from __future__ import annotations

from omni_core.api import TEXT, Interface, Parameter, ParameterGroup, StageConfig
from omni_torch.api import sampling_parameters
from omni_transformers.checkpoints import Source
from omni_transformers.defaults import defaults_of
from omni_transformers.options import Given

GROUP = "answer"


def interface(source: Source) -> Interface:
    """Return what a checkpoint offers."""
    parameters = [
        *sampling_parameters(defaults_of(source.generation, max_new_tokens=1024)),
        Parameter("stop", "strings", "end the text before this string; may be repeated", maximum=16),
    ]
    return Interface(
        roles={TEXT: GROUP},
        inputs=list(source.architecture.inputs),
        outputs=["text"],
        groups=[ParameterGroup(GROUP, TEXT, "how the text is chosen", parameters)],
    )


def stages(source: Source, given: Given) -> list[StageConfig]:
    """Return the stages."""
    factory = "omni_transformers.words.steps:create_writer"
    return [given.stage(GROUP, factory=factory, factory_args=given.network, terminal=True)]
