"""The check that a request passes before it is admitted: its parameters, metadata, modalities and parts against the interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve

from omni_core.config.schema import PipelineConfig
from omni_core.errors import InvalidRequestError, did_you_mean
from omni_core.interface import Interface, Parameter
from omni_core.observe.telemetry import TRACEPARENT
from omni_core.plugins import PluginRegistry
from omni_core.protocol.messages import OmniRequest

TRACING = (TRACEPARENT, "tracestate")
"""Metadata that the runtime itself reads, of every pipeline."""


def admission(config: PipelineConfig, registry: PluginRegistry) -> Callable[[OmniRequest], OmniRequest]:
    """Return the function that checks a request for this pipeline and returns it with its parameters in their groups.

    It raises InvalidRequestError, which names the part and the nearest valid name. Without an interface everything is admitted.
    """
    if config.interface is None:
        return lambda request: request
    known = {each.name for each in config.interface.metadata}
    interface = evolve(
        config.interface,
        metadata=[
            *config.interface.metadata,
            *(each for each in _of_parts(config, registry) if each.name not in known),
        ],
    )
    affinity = [stage.affinity_key for stage in config.stages if stage.affinity_key is not None]

    def admit(request: OmniRequest) -> OmniRequest:
        params = interface.check_params(request.params)
        metadata = interface.check_metadata(request.metadata, [*TRACING, *affinity])
        _check_modalities(interface, request.modalities)
        _check_inputs(interface, request.inputs)
        return evolve(request, params=params, metadata=metadata)

    return admit


def _of_parts(config: PipelineConfig, registry: PluginRegistry) -> Iterator[Parameter]:
    """Yield the metadata that registered factories and parts of the stages declare."""
    named = {
        (hook, name)
        for stage in config.stages
        for hook, name in (
            ("omni_schedulers", stage.factory),
            ("omni_schedulers", stage.scheduler),
            ("omni_model_runners", stage.model_runner),
            ("omni_feedback_strategies", stage.feedback),
        )
    }
    declared = (
        each
        for hook in {hook for hook, _ in named}
        for each, _ in registry.components(hook)
        if (hook, each.name) in named
    )
    yield from {parameter.name: parameter for each in declared for parameter in each.metadata}.values()


def _check_modalities(interface: Interface, wanted: Any) -> None:
    offered = interface.outputs
    if wanted is None or not offered:
        return
    if not isinstance(wanted, list | tuple) or not wanted:
        raise InvalidRequestError(f"modalities: must be a non-empty list of: {', '.join(offered)}; is {wanted!r}")
    for name in wanted:
        if name not in offered:
            raise InvalidRequestError(
                f"modalities: {name!r} is not offered{did_you_mean(name, offered, listing='this pipeline offers')}"
            )


def _check_inputs(interface: Interface, inputs: Any) -> None:
    """Refuse kinds of input that the pipeline does not take. The form of messages is the stages' to check."""
    if not isinstance(inputs, dict):
        return
    if inputs.get("references") and "reference" not in interface.inputs:
        voices = f"; it has voices of its own: {', '.join(interface.voices)}" if interface.voices else ""
        raise InvalidRequestError(
            f"inputs.references: this pipeline cannot speak with the voice of a recording{voices}"
        )
    kinds = [kind for kind in interface.inputs if kind != "reference"]
    messages = inputs.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        content = message.get("content") if isinstance(message, dict) else None
        for index, part in enumerate(content if isinstance(content, list) else []):
            kind = part.get("type") if isinstance(part, dict) else None
            if kinds and isinstance(kind, str) and kind not in kinds:
                where = f"messages[{number}].content[{index}].type"
                raise InvalidRequestError(
                    f"{where}: this pipeline takes no {kind!r}{did_you_mean(kind, kinds, listing='it takes')}"
                )
