"""The request parameters of :func:`omni_torch.sampling.sample.sample`, as a pipeline declares them. Imports no torch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from attrs import evolve

from omni_core.api import SEED, STRUCTURED, STRUCTURES, TOP_LOGPROBS, Interface, Parameter, structured_parameter

_INT32, _INT63 = 2**31 - 1, 2**63 - 1

SAMPLING = [
    Parameter("temperature", "number", "sampling temperature; 0 is greedy", 0.0, minimum=0, maximum=100),
    Parameter("top_k", "integer", "keep the k most likely; 0 is off", 0, minimum=0, maximum=_INT32),
    Parameter(
        "top_p", "number", "nucleus sampling: keep this probability mass; 1 is off", 1.0, minimum=1e-6, maximum=1
    ),
    Parameter("min_p", "number", "least probability, relative to the most likely; 0 is off", 0.0, minimum=0, maximum=1),
    Parameter("repetition_penalty", "number", "above 1 avoids repetition; 1 is off", 1.0, minimum=1e-3, maximum=100),
    Parameter(
        "max_new_tokens", "integer", "maximum number of generated tokens", 1024, 1, _INT32, aliases=["max_tokens"]
    ),
    Parameter(SEED, "integer", "sampling seed; random by default", minimum=0, maximum=_INT63),
    Parameter("stop_ids", "integers", "token ids that end the generation", minimum=0),
    Parameter("suppressed_ids", "integers", "token ids that are never chosen", minimum=0),
]
"""Temperature, filters, penalty, length, seed, and sets of ids, as read by :func:`omni_torch.sampling.sample.sampling_from`.
"""


def sampling_parameters(defaults: dict[str, Any]) -> list[Parameter]:
    """Return :data:`SAMPLING` with a model's own defaults."""
    return [evolve(each, default=defaults.get(each.name, each.default)) for each in SAMPLING]


def text_parameters() -> list[Parameter]:
    """Return what a stage that writes text with :class:`~omni_torch.runners.model_runner.ARModelRunner` honours beside: log
    probabilities, and what its text must be.
    """
    return [TOP_LOGPROBS, structured_parameter(*STRUCTURES)]


def as_installed(interface: Interface) -> Interface:
    """Return a declaration in which a text can be held to nothing if llguidance is not installed: the stage says what to install."""
    if find_spec("llguidance") is not None:
        return interface
    groups = [
        evolve(
            group,
            parameters=[evolve(each, choices=[]) if each.name == STRUCTURED else each for each in group.parameters],
        )
        for group in interface.groups
    ]
    return evolve(interface, groups=groups)
