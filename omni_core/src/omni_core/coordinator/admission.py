"""The check that a request passes before it is admitted: its parameters, metadata, modalities and parts against the interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import asdict, evolve

from omni_core.config.request_defaults import affinity_keys, default_params, with_parts
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError, InvalidRequestError, did_you_mean, shown
from omni_core.interface import Interface
from omni_core.observe.telemetry import TRACEPARENT
from omni_core.plugins import PluginRegistry
from omni_core.protocol.messages import OmniRequest
from omni_core.services import LIMITS

TRACING = (TRACEPARENT, "tracestate")
"""Metadata that the runtime itself reads, of every pipeline."""


def admission(config: PipelineConfig, registry: PluginRegistry) -> Callable[[OmniRequest], OmniRequest]:
    """Return the function that checks a request for this pipeline and returns it with its parameters in their groups.

    It raises InvalidRequestError, which names the part and the nearest valid name. Without an interface everything is admitted.
    """

    given, limits = config.defaults, asdict(config.limits, filter=lambda _, most: most is not None)

    check_limits = LIMITS.need("`limits` need", registry) if limits else None

    def completed(request: OmniRequest) -> OmniRequest:
        """Return the request with what is set for all of them; what it says itself is kept."""
        if check_limits is not None:
            check_limits(limits, request.inputs)
        if config.request_timeout is not None and request.timeout is None:
            request = evolve(request, timeout=config.request_timeout)
        if given.modalities is not None and request.modalities is None:
            request = evolve(request, modalities=given.modalities)
        return request

    if config.interface is None:

        def admit_any(request: OmniRequest) -> OmniRequest:
            request = completed(request)
            if given.params and isinstance(request.params, dict):
                request = evolve(request, params=_merged(given.params, request.params))
            if given.metadata and isinstance(request.metadata, dict):
                request = evolve(request, metadata={**given.metadata, **request.metadata})
            return request

        return admit_any
    interface = with_parts(config.interface, config.stages, registry)
    others = [*TRACING, *affinity_keys(config)]
    try:
        _check_modalities(interface, given.modalities)
        usual_params, usual_metadata = (
            default_params(config, interface),
            interface.check_metadata(given.metadata, others),
        )
    except InvalidRequestError as error:
        raise ConfigError(f"defaults.{error}") from None

    def admit(request: OmniRequest) -> OmniRequest:
        request = completed(request)
        params = _merged(usual_params, interface.check_params(request.params))
        metadata = {**usual_metadata, **interface.check_metadata(request.metadata, others)}
        _check_modalities(interface, request.modalities)
        _check_inputs(interface, request.inputs)
        return evolve(request, params=params, metadata=metadata, composed=None)

    return admit


def _merged(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults with what is given over them, group by group."""
    both = {
        name: {**usual[name], **given[name]}
        for name in usual
        if isinstance(given.get(name), dict) and isinstance(usual[name], dict)
    }
    return {**usual, **given, **both}


def _check_modalities(interface: Interface, wanted: Any) -> None:
    offered = interface.outputs
    if wanted is None or not offered:
        return
    if not isinstance(wanted, list | tuple) or not wanted:
        raise InvalidRequestError(f"modalities: must be a non-empty list of: {', '.join(offered)}; is {shown(wanted)}")
    for name in wanted:
        if name not in offered:
            raise InvalidRequestError(
                f"modalities: {shown(name)} is not offered{did_you_mean(name, offered, listing='this pipeline offers')}"
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
                raise InvalidRequestError(f"{where}: this pipeline takes no {shown(kind)}{hint}")
