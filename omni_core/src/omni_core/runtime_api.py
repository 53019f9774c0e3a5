"""Names of the core for the runtime parts of other distributions: the server, the command line, launchers and test suites.

They promise nothing: any of them may change or go with the next version. What plugins may rely on is in :mod:`omni_core.api`. Each is
imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_core.references import exports

if TYPE_CHECKING:
    from omni_core.cli.ending import signals_named, until_terminated
    from omni_core.cli.logs import log_options, set_log_options
    from omni_core.cli.main import LazyGroup, omni
    from omni_core.cli.reply import SpeechSink, receive_reply, reply_document, seconds_of
    from omni_core.cli.request import assign, given_text, message_argument, set_at, standard_input
    from omni_core.cli.source import ENDPOINT_OPTIONS, SOURCE_OPTIONS, source_options, with_source
    from omni_core.client.checkpoints import CHECKPOINT_CONFIGS, config_of, interface_of
    from omni_core.client.replies import pcm16
    from omni_core.client.source import EVERY_STAGE, SETTING_VARIABLE, PipelineSource, parse_options
    from omni_core.config.addresses import join_address, split_address
    from omni_core.config.completion import completed
    from omni_core.config.documents import Document, parse_yaml
    from omni_core.config.loading import CONFIG_SUFFIXES, is_file, parse_assignment, read_yaml, structure, unstructure
    from omni_core.config.overrides import (
        Fields,
        Override,
        ResolvedConfig,
        in_factory_args,
        refuse_twice,
        set_field,
        value_of,
    )
    from omni_core.config.parts import STAGE_PARTS, resolve_part, scheduler_of
    from omni_core.config.placement import PlannedProcess, Replica, plan, process_groups, process_names
    from omni_core.config.request_defaults import affinity_keys, default_params, group_named, with_parts
    from omni_core.config.schema import FIELD_CLASSES
    from omni_core.config.settings import read_settings
    from omni_core.config.validation import config_problems, reachable, validate
    from omni_core.control.back_pressure import MOST_INPUT_CHUNKS
    from omni_core.control.faults import Sparing
    from omni_core.control.framing import parse_frame
    from omni_core.control.lanes import Tasks
    from omni_core.control.network import Network, OnFrame
    from omni_core.control.plane import ControlPlane
    from omni_core.coordinator.actions import Action, Ended, Start
    from omni_core.coordinator.admission import admission
    from omni_core.coordinator.coordinator import Coordinator
    from omni_core.coordinator.deadlines import ANSWER_SECONDS
    from omni_core.coordinator.replicas import BALANCES, Load, ReplicaChoice, ReplicatedGroup, least_busy
    from omni_core.coordinator.request_machine import RequestMachine
    from omni_core.coordinator.tracked_request import StreamEvent
    from omni_core.coordinator.turns import AdmissionPolicy, AdmittingMachine
    from omni_core.errors import CodecError, StageFailedError, is_interrupt, message_of, name_of, traceback_of
    from omni_core.hookspecs import Hook, works
    from omni_core.launch.observation import Answers
    from omni_core.launch.prepare import PreparedPipeline, prepare, replicated_group
    from omni_core.launch.relay_plan import relay_reference
    from omni_core.launch.running import Running
    from omni_core.launch.units import Units
    from omni_core.machines import Placing, endpoint_of, needs
    from omni_core.machines.placing import coordinator_address
    from omni_core.machines.selection import launcher_reference
    from omni_core.observe.recording import Flow, ProfileSummary, Profiling, Recorder, StageRecorder
    from omni_core.observe.telemetry import TRACEPARENT
    from omni_core.plugins import Defect, PluginFault, PluginRecord, PluginStatus, isolated
    from omni_core.plugins.advice import distribution_for
    from omni_core.plugins.levels import described_levels
    from omni_core.plugins.registry import problem_of
    from omni_core.processes.actions import UnitState
    from omni_core.processes.deaths import REPORT_SECONDS, concerns
    from omni_core.processes.family import MARK_ROOM
    from omni_core.processes.main import run_stage_process
    from omni_core.processes.parent import die_with_parent
    from omni_core.processes.process import (
        Launch,
        StageProcess,
        interpreter,
        wait_for,
        with_defaults,
    )
    from omni_core.processes.run_directory import DirectoryCleaner, run_directory, temporary_directory
    from omni_core.processes.supervisor import Role, Supervisor
    from omni_core.processes.worker import Worker
    from omni_core.protocol.codec import decode, encode, encode_split
    from omni_core.protocol.messages import (
        CompleteMessage,
        ProfileDone,
        ProfileMessage,
        ProfileReport,
        ProfileRequest,
        StageSpan,
        StatusReport,
        StatusRequest,
        SubmitMessage,
    )
    from omni_core.protocol.operation_messages import (
        Change,
        OperationCancel,
        OperationDone,
        OperationRequest,
        OperationStep,
    )
    from omni_core.protocol.process_messages import PeerJoinedMessage, PeerLeftMessage, ReadyMessage, ShutdownMessage
    from omni_core.protocol.registry import message, register
    from omni_core.protocol.specs import KernelSpec, NetworkSpec, RelaySpec, StageSpec, UnitSpec
    from omni_core.protocol.tensors import load_libraries
    from omni_core.references import find_module, normalize, reference_problem
    from omni_core.services import ADMISSION, IMPORTS
    from omni_core.stage.assembly import BATCHING_ARGUMENTS, CONTEXT_ARGUMENTS
    from omni_core.stage.outbound import Outbound
    from omni_core.stage.thread import StageThread

__all__ = [
    # Errors, and what messages say of them
    "CodecError", "StageFailedError", "is_interrupt", "message_of", "name_of", "traceback_of",
    # Plugins, dotted references and the slots of services
    "Hook", "works", "Defect", "PluginFault", "PluginRecord", "PluginStatus", "isolated", "distribution_for",
    "described_levels", "problem_of", "find_module", "normalize", "reference_problem", "ADMISSION", "IMPORTS",
    # Configs: documents, overrides, parts of stages, checks, and the processes that follow
    "join_address", "split_address", "completed", "Document", "parse_yaml", "CONFIG_SUFFIXES", "is_file",
    "parse_assignment", "read_yaml", "structure", "unstructure", "Fields", "Override", "ResolvedConfig",
    "in_factory_args", "refuse_twice", "set_field", "value_of", "STAGE_PARTS", "resolve_part", "scheduler_of",
    "PlannedProcess", "Replica", "plan", "process_groups", "process_names", "affinity_keys", "default_params",
    "group_named", "with_parts", "FIELD_CLASSES", "read_settings", "config_problems", "reachable", "validate",
    # Sources of pipelines, and what a client does with a checkpoint or a sound
    "CHECKPOINT_CONFIGS", "config_of", "interface_of", "pcm16", "EVERY_STAGE", "SETTING_VARIABLE", "PipelineSource",
    "parse_options",
    # The command line: options that commands share, and how a reply is shown
    "signals_named", "until_terminated", "log_options", "set_log_options", "LazyGroup", "omni", "SpeechSink",
    "receive_reply", "reply_document", "seconds_of", "assign", "set_at", "given_text",
    "message_argument", "standard_input", "ENDPOINT_OPTIONS", "SOURCE_OPTIONS", "source_options", "with_source",
    # Messages between processes
    "decode", "encode", "encode_split", "CompleteMessage", "PeerJoinedMessage", "PeerLeftMessage", "ProfileDone",
    "ProfileMessage", "ProfileReport", "ProfileRequest", "ReadyMessage", "ShutdownMessage", "StageSpan",
    "StatusReport", "StatusRequest", "SubmitMessage", "Change", "OperationCancel", "OperationDone", "OperationRequest",
    "OperationStep", "message", "register", "KernelSpec", "NetworkSpec", "RelaySpec", "StageSpec",
    "UnitSpec", "load_libraries",
    # Connections between processes
    "MOST_INPUT_CHUNKS", "Sparing", "parse_frame", "Tasks", "Network", "OnFrame", "ControlPlane",
    # Requests in the coordinator: its machine and the choice of replicas
    "Action", "Ended", "Start", "admission", "Coordinator", "ANSWER_SECONDS", "BALANCES", "Load", "ReplicaChoice",
    "ReplicatedGroup", "least_busy", "RequestMachine", "StreamEvent", "AdmissionPolicy", "AdmittingMachine",
    # A stage: its arguments, its thread and what it sends
    "BATCHING_ARGUMENTS", "CONTEXT_ARGUMENTS", "Outbound", "StageThread",
    # Processes: how they are started, watched and ended
    "UnitState", "REPORT_SECONDS", "concerns", "MARK_ROOM", "run_stage_process", "die_with_parent", "Launch",
    "StageProcess", "interpreter", "wait_for", "with_defaults", "DirectoryCleaner", "run_directory",
    "temporary_directory", "Role", "Supervisor", "Worker",
    # Machines and a running pipeline
    "Answers", "PreparedPipeline", "prepare", "replicated_group", "relay_reference", "Running", "Units", "Placing",
    "endpoint_of", "needs", "coordinator_address", "launcher_reference",
    # Recordings and traces
    "Flow", "ProfileSummary", "Profiling", "Recorder", "StageRecorder", "TRACEPARENT",
]  # fmt: skip

_HOMES = {
    "omni_core.cli.ending": "signals_named until_terminated",
    "omni_core.cli.logs": "log_options set_log_options",
    "omni_core.cli.main": "LazyGroup omni",
    "omni_core.cli.reply": "SpeechSink receive_reply reply_document seconds_of",
    "omni_core.cli.request": "assign given_text message_argument set_at standard_input",
    "omni_core.cli.source": "ENDPOINT_OPTIONS SOURCE_OPTIONS source_options with_source",
    "omni_core.client.checkpoints": "CHECKPOINT_CONFIGS config_of interface_of",
    "omni_core.client.replies": "pcm16",
    "omni_core.client.source": "EVERY_STAGE SETTING_VARIABLE PipelineSource parse_options",
    "omni_core.config.addresses": "join_address split_address",
    "omni_core.config.completion": "completed",
    "omni_core.config.documents": "Document parse_yaml",
    "omni_core.config.loading": "CONFIG_SUFFIXES is_file parse_assignment read_yaml structure unstructure",
    "omni_core.config.overrides": "Fields Override ResolvedConfig in_factory_args refuse_twice set_field value_of",
    "omni_core.config.parts": "STAGE_PARTS resolve_part scheduler_of",
    "omni_core.config.placement": "PlannedProcess Replica plan process_groups process_names",
    "omni_core.config.request_defaults": "affinity_keys default_params group_named with_parts",
    "omni_core.config.schema": "FIELD_CLASSES",
    "omni_core.config.settings": "read_settings",
    "omni_core.config.validation": "config_problems reachable validate",
    "omni_core.control.back_pressure": "MOST_INPUT_CHUNKS",
    "omni_core.control.faults": "Sparing",
    "omni_core.control.framing": "parse_frame",
    "omni_core.control.lanes": "Tasks",
    "omni_core.control.network": "Network OnFrame",
    "omni_core.control.plane": "ControlPlane",
    "omni_core.coordinator.actions": "Action Ended Start",
    "omni_core.coordinator.admission": "admission",
    "omni_core.coordinator.coordinator": "Coordinator",
    "omni_core.coordinator.deadlines": "ANSWER_SECONDS",
    "omni_core.coordinator.replicas": "BALANCES Load ReplicaChoice ReplicatedGroup least_busy",
    "omni_core.coordinator.request_machine": "RequestMachine",
    "omni_core.coordinator.tracked_request": "StreamEvent",
    "omni_core.coordinator.turns": "AdmissionPolicy AdmittingMachine",
    "omni_core.errors": "CodecError StageFailedError is_interrupt message_of name_of traceback_of",
    "omni_core.hookspecs": "Hook works",
    "omni_core.launch.observation": "Answers",
    "omni_core.launch.prepare": "PreparedPipeline prepare replicated_group",
    "omni_core.launch.relay_plan": "relay_reference",
    "omni_core.launch.running": "Running",
    "omni_core.launch.units": "Units",
    "omni_core.machines": "Placing endpoint_of needs",
    "omni_core.machines.placing": "coordinator_address",
    "omni_core.machines.selection": "launcher_reference",
    "omni_core.observe.recording": "Flow ProfileSummary Profiling Recorder StageRecorder",
    "omni_core.observe.telemetry": "TRACEPARENT",
    "omni_core.plugins": "Defect PluginFault PluginRecord PluginStatus isolated",
    "omni_core.plugins.advice": "distribution_for",
    "omni_core.plugins.levels": "described_levels",
    "omni_core.plugins.registry": "problem_of",
    "omni_core.processes.actions": "UnitState",
    "omni_core.processes.deaths": "REPORT_SECONDS concerns",
    "omni_core.processes.family": "MARK_ROOM",
    "omni_core.processes.main": "run_stage_process",
    "omni_core.processes.parent": "die_with_parent",
    "omni_core.processes.process": "Launch StageProcess interpreter wait_for with_defaults",
    "omni_core.processes.run_directory": "DirectoryCleaner run_directory temporary_directory",
    "omni_core.processes.supervisor": "Role Supervisor",
    "omni_core.processes.worker": "Worker",
    "omni_core.protocol.codec": "decode encode encode_split",
    "omni_core.protocol.messages": (
        "CompleteMessage ProfileDone ProfileMessage ProfileReport ProfileRequest StageSpan StatusReport StatusRequest "
        "SubmitMessage"
    ),
    "omni_core.protocol.operation_messages": "Change OperationCancel OperationDone OperationRequest OperationStep",
    "omni_core.protocol.process_messages": "PeerJoinedMessage PeerLeftMessage ReadyMessage ShutdownMessage",
    "omni_core.protocol.registry": "message register",
    "omni_core.protocol.specs": "KernelSpec NetworkSpec RelaySpec StageSpec UnitSpec",
    "omni_core.protocol.tensors": "load_libraries",
    "omni_core.references": "find_module normalize reference_problem",
    "omni_core.services": "ADMISSION IMPORTS",
    "omni_core.stage.assembly": "BATCHING_ARGUMENTS CONTEXT_ARGUMENTS",
    "omni_core.stage.outbound": "Outbound",
    "omni_core.stage.thread": "StageThread",
}
"""By module, the names that come from it."""

if not TYPE_CHECKING:  # or checkers would take any name for one of this module
    __getattr__ = exports(__name__, _HOMES)
