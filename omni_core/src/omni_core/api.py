"""Public names of the core: those that models, relays, schedulers, launchers and functions of stages are written with.

The API levels (:mod:`omni_core.plugins.levels`) cover these names and no others of this package. Each is imported when it is first asked
for, so that the light module of a plugin stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_core.references import exports

if TYPE_CHECKING:
    from omni_core.client import AsyncPipe, Pipe, open, open_async, run
    from omni_core.client.chat_request import KINDS, MediaPolicy, Recording
    from omni_core.client.source import pipeline_of
    from omni_core.component_checks import Probe, ProbeWarning
    from omni_core.config.completion import DoesNotFitError, Machine, Placement
    from omni_core.config.compose import Edge, compose
    from omni_core.config.loading import expanded
    from omni_core.config.placement import AUTO, Budget, gib, parse_bytes
    from omni_core.config.schema import (
        EndpointsConfig,
        LauncherConfig,
        PipelineConfig,
        RelayConfig,
        RequestDefaults,
        RequestLimits,
        RestartConfig,
        StageConfig,
    )
    from omni_core.control.faults import kept_up, watched
    from omni_core.errors import (
        ConfigError,
        InvalidRequestError,
        OmniError,
        OverloadedError,
        PeerDiedError,
        PluginError,
        RelayCapacityError,
        RelayError,
        RelayFullError,
        RequestAbortedError,
        RequestFailedError,
        RequestTimeoutError,
        RequestTooLargeError,
        StartupError,
        did_you_mean,
        shown,
    )
    from omni_core.hookspecs import (
        HOOKS,
        CommandComponent,
        Component,
        KernelComponent,
        PartComponent,
        PipelineComponent,
        RelayComponent,
        SchedulerComponent,
        ServiceComponent,
        hookimpl,
        hookspec,
    )
    from omni_core.interface import (
        SEED,
        SPEECH,
        STRUCTURED,
        TEXT,
        TRANSCRIPTION,
        VOCODER,
        VOICE,
        WORD_TIMES,
        Interface,
        Parameter,
        ParameterGroup,
        checked,
        transcription_parameters,
    )
    from omni_core.machines import Grant, Launcher, LauncherOptions, LocalMachine, Need, RunMachine
    from omni_core.model_runner import (
        ARModel,
        ARRequest,
        AttentionForm,
        CacheAttention,
        Constraint,
        ContentSpan,
        DecodeCache,
        FeedbackStrategy,
        FinishReason,
        Forward,
        ForwardBatch,
        ForwardOutput,
        KVLayout,
        ModelRunner,
        PagedAttention,
        RandomStream,
        SamplingParams,
    )
    from omni_core.plugins import PluginRegistry, load_plugins
    from omni_core.processes.process import SupervisedProcess
    from omni_core.protocol.messages import OmniRequest, StagePayload, text_of, text_to_speak
    from omni_core.protocol.outputs import (
        AudioChunk,
        AudioResult,
        ImageChunk,
        ImageResult,
        ReasoningChunk,
        Segment,
        TextChunk,
        TextResult,
        TokenLogprob,
        Transcript,
        TranscriptChunk,
        Word,
    )
    from omni_core.protocol.sentences import SentenceCutter
    from omni_core.protocol.specs import ProcessSpec
    from omni_core.protocol.tensors import Buffer, address_of, as_tensor, copy, flat, wait_for_device
    from omni_core.references import exports, imported, load
    from omni_core.relay.base import Relay, RelayOperation, RelayOptions
    from omni_core.scheduling.aside import Aside, AsideScheduler
    from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage, Scheduler
    from omni_core.scheduling.loop import LoopScheduler, pausing, take_pausing
    from omni_core.scheduling.simple import SimpleScheduler
    from omni_core.scheduling.streaming import StreamingScheduler
    from omni_core.structured import STRUCTURES, TOP_LOGPROBS, structured_parameter

__all__ = [
    # Plugins: the marker of hooks, and the components that they return
    "HOOKS", "CommandComponent", "Component", "KernelComponent", "PartComponent", "PipelineComponent", "Probe", "ProbeWarning",
    "RelayComponent", "SchedulerComponent", "ServiceComponent", "hookimpl", "hookspec",
    # Installed plugins, dotted references, and the names of an interface of one's own
    "PluginRegistry", "load_plugins", "imported", "load", "exports",
    # Pipelines: their stages, where these are placed, and pipelines of pipelines
    "EndpointsConfig", "LauncherConfig", "PipelineConfig", "RelayConfig", "RequestDefaults", "RequestLimits",
    "RestartConfig", "StageConfig", "DoesNotFitError", "Machine", "Placement", "Edge", "compose", "pipeline_of", "expanded",
    "AUTO", "Budget", "gib", "parse_bytes",
    # Interfaces: roles of stages, parameters of requests, and their checks
    "SEED", "SPEECH", "TEXT", "TRANSCRIPTION", "VOCODER", "VOICE", "WORD_TIMES", "Interface", "Parameter", "ParameterGroup",
    "checked", "transcription_parameters", "STRUCTURED", "STRUCTURES", "TOP_LOGPROBS", "structured_parameter",
    # Requests and what stages answer
    "OmniRequest", "StagePayload", "text_of", "text_to_speak", "AudioChunk", "AudioResult", "ImageChunk", "ImageResult", "ReasoningChunk",
    "Segment", "SentenceCutter", "TextChunk", "TextResult", "TokenLogprob", "Transcript", "TranscriptChunk", "Word",
    # Errors, and values in their messages
    "ConfigError", "InvalidRequestError", "OmniError", "OverloadedError", "PeerDiedError", "PluginError",
    "RelayCapacityError", "RelayError", "RelayFullError", "RequestAbortedError", "RequestFailedError",
    "RequestTimeoutError", "RequestTooLargeError", "StartupError", "did_you_mean", "shown",
    # Schedulers: what computes in a stage
    "Aside", "AsideScheduler", "IncomingMessage", "MessageQueue", "OutgoingMessage", "Scheduler", "LoopScheduler", "pausing",
    "take_pausing", "SimpleScheduler", "StreamingScheduler",
    # Model runners and the batches that they compute
    "ARModel", "ARRequest", "AttentionForm", "CacheAttention", "Constraint", "ContentSpan", "DecodeCache", "FeedbackStrategy",
    "FinishReason", "Forward", "ForwardBatch", "ForwardOutput", "KVLayout", "ModelRunner", "PagedAttention", "RandomStream",
    "SamplingParams",
    # Relays: how bytes travel, and what they are to a relay
    "Relay", "RelayOperation", "RelayOptions", "kept_up", "watched", "Buffer", "address_of", "as_tensor", "copy",
    "flat", "wait_for_device",
    # Launchers: machines for processes
    "Grant", "Launcher", "LauncherOptions", "LocalMachine", "Need", "ProcessSpec", "RunMachine", "SupervisedProcess",
    # Media: what a reader of requests' files is given
    "KINDS", "MediaPolicy", "Recording",
    # The Python client
    "AsyncPipe", "Pipe", "open", "open_async", "run",
]  # fmt: skip

_HOMES = {
    "omni_core.client": "AsyncPipe Pipe open open_async run",
    "omni_core.client.chat_request": "KINDS MediaPolicy Recording",
    "omni_core.client.source": "pipeline_of",
    "omni_core.component_checks": "Probe ProbeWarning",
    "omni_core.config.completion": "DoesNotFitError Machine Placement",
    "omni_core.config.compose": "Edge compose",
    "omni_core.config.loading": "expanded",
    "omni_core.config.placement": "AUTO Budget gib parse_bytes",
    "omni_core.config.schema": (
        "EndpointsConfig LauncherConfig PipelineConfig RelayConfig RequestDefaults RequestLimits "
        "RestartConfig StageConfig"
    ),
    "omni_core.control.faults": "kept_up watched",
    "omni_core.errors": (
        "ConfigError InvalidRequestError OmniError OverloadedError PeerDiedError PluginError "
        "RelayCapacityError RelayError RelayFullError RequestAbortedError RequestFailedError "
        "RequestTimeoutError RequestTooLargeError StartupError did_you_mean shown"
    ),
    "omni_core.hookspecs": (
        "HOOKS CommandComponent Component KernelComponent PartComponent PipelineComponent RelayComponent "
        "SchedulerComponent ServiceComponent hookimpl hookspec"
    ),
    "omni_core.interface": (
        "SEED SPEECH STRUCTURED TEXT TRANSCRIPTION VOCODER VOICE WORD_TIMES Interface Parameter ParameterGroup checked "
        "transcription_parameters"
    ),
    "omni_core.machines": "Grant Launcher LauncherOptions LocalMachine Need RunMachine",
    "omni_core.model_runner": (
        "ARModel ARRequest AttentionForm CacheAttention Constraint ContentSpan DecodeCache FeedbackStrategy FinishReason Forward "
        "ForwardBatch ForwardOutput KVLayout ModelRunner PagedAttention RandomStream SamplingParams"
    ),
    "omni_core.plugins": "PluginRegistry load_plugins",
    "omni_core.processes.process": "SupervisedProcess",
    "omni_core.protocol.messages": "OmniRequest StagePayload text_of text_to_speak",
    "omni_core.protocol.outputs": (
        "AudioChunk AudioResult ImageChunk ImageResult ReasoningChunk Segment TextChunk TextResult TokenLogprob "
        "Transcript TranscriptChunk Word"
    ),
    "omni_core.protocol.sentences": "SentenceCutter",
    "omni_core.protocol.specs": "ProcessSpec",
    "omni_core.protocol.tensors": "Buffer address_of as_tensor copy flat wait_for_device",
    "omni_core.references": "exports imported load",
    "omni_core.relay.base": "Relay RelayOperation RelayOptions",
    "omni_core.scheduling.aside": "Aside AsideScheduler",
    "omni_core.scheduling.base": "IncomingMessage MessageQueue OutgoingMessage Scheduler",
    "omni_core.scheduling.loop": "LoopScheduler pausing take_pausing",
    "omni_core.scheduling.simple": "SimpleScheduler",
    "omni_core.scheduling.streaming": "StreamingScheduler",
    "omni_core.structured": "STRUCTURES TOP_LOGPROBS structured_parameter",
}
"""By module, the names that come from it."""

if not TYPE_CHECKING:  # or checkers would take any name for one of this module
    __getattr__ = exports(__name__, _HOMES)
