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
    """Return the stages. Which backend computes is known when the model is loaded, so they are the same for all."""
    both = {**given.network, "backend": given.backend}
    home = "omni_transformers.words.engine"
    return [
        given.stage("prepare", factory=f"{home}:create_prepare", factory_args=both, next=GROUP),
        given.stage(GROUP, factory=f"{home}:create_answer", factory_args=both, terminal=True),
    ]
