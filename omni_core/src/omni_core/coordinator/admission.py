"""The check that a request passes before it is admitted: its parameters, metadata, modalities and parts against the interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import InvalidRequestError, did_you_mean
from omni_core.hookspecs import PartComponent
from omni_core.interface import Interface
from omni_core.observe.telemetry import TRACEPARENT
from omni_core.plugins import PluginRegistry
from omni_core.protocol.messages import OmniRequest
from omni_core.references import normalize

TRACING = (TRACEPARENT, "tracestate")
"""Metadata that the runtime itself reads, of every pipeline."""


def admission(config: PipelineConfig, registry: PluginRegistry) -> Callable[[OmniRequest], OmniRequest]:
    """Return the function that checks a request for this pipeline and returns it with its parameters in their groups.

    It raises InvalidRequestError, which names the part and the nearest valid name. Without an interface everything is admitted.
    """

    def with_timeout(request: OmniRequest) -> OmniRequest:
        if config.request_timeout is None or request.timeout is not None:
            return request
        return evolve(request, timeout=config.request_timeout)

    if config.interface is None:
        return with_timeout
    interface = _with_parts(config.interface, config.stages, registry)
    affinity = [stage.affinity_key for stage in config.stages if stage.affinity_key is not None]

    def admit(request: OmniRequest) -> OmniRequest:
        params = interface.check_params(request.params)
        metadata = interface.check_metadata(request.metadata, [*TRACING, *affinity])
        _check_modalities(interface, request.modalities)
        _check_inputs(interface, request.inputs)
        return with_timeout(evolve(request, params=params, metadata=metadata))

    return admit


def _with_parts(interface: Interface, stages: list[StageConfig], registry: PluginRegistry) -> Interface:
    """Return the interface with what the named parts of the stages declare beyond it."""
    for stage in stages:
        for hook, name in (("omni_model_runners", stage.model_runner), ("omni_feedback_strategies", stage.feedback)):
            for component in _parts(hook, name, registry):
                groups = [
                    evolve(group, parameters=[*group.parameters, *component.parameters])
                    if interface.roles.get(group.role) == stage.name
                    else group
                    for group in interface.groups
                ]
                interface = evolve(interface, groups=groups, metadata=[*interface.metadata, *component.metadata])
    return interface


def _parts(hook: str, name: str | None, registry: PluginRegistry) -> list[PartComponent]:
    """Return the part that a stage names, by its name or its reference, if it declares anything."""
    parts = [component for component, _ in registry.components(hook) if isinstance(component, PartComponent)]
    return [part for part in parts if name in (part.name, part.target, normalize(part.target))][:1]


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
        raise InvalidRequestError(f"inputs.references: this pipeline cannot speak with a recording's voice{voices}")
    kinds = [kind for kind in interface.inputs if kind != "reference"]
    messages = inputs.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        content = message.get("content") if isinstance(message, dict) else None
        for index, part in enumerate(content if isinstance(content, list) else []):
            kind = part.get("type") if isinstance(part, dict) else None
            if kinds and isinstance(kind, str) and kind not in kinds:
                where, hint = f"messages[{number}].content[{index}].type", did_you_mean(kind, kinds, listing="it takes")
                raise InvalidRequestError(f"{where}: this pipeline takes no {kind!r}{hint}")
