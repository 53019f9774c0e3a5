"""Rules for ``connectors``, for the edges that name them, and for the model's own keys that lie in their ``extra`` block."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from omni_cli.importing import values
from omni_cli.importing.report import Outcome, holds, note, refuse, take
from omni_cli.importing.target import Target
from omni_cli.importing.vllm_omni.context import Context, Place, section
from omni_cli.importing.vllm_omni.settings import STAGE, Setting
from omni_core.api import did_you_mean

SHM = "SharedMemoryConnector"

CLASSES = {
    SHM: "shm",
    "NixlConnector": "nixl",
    "MooncakeTransferEngineConnector": "mooncake",
    "MooncakeStoreConnector": "mooncake",
    "MooncakeConnector": "mooncake",
}
"""Our relay by the class of a connector."""

UNKNOWN_HERE = ("MoriTransferEngineConnector", "YuanrongConnector", "YuanrongTransferEngineConnector")
"""Connectors without a relay here; the default one carries the same data."""

FIELDS = {"protocol": "settings.protocol", "proto": "settings.protocol", "device_name": "settings.device_name"}
"""Settings of the relay that keep their value, for relays of RDMA."""

CREDITS = 2
"""Slots of a pool, as ``RelayConfig`` has them by default; a pool's size is divided by them."""

DROPPED = {
    "nothing here polls, and vllm-omni 0.30 does not read it either": (
        "connector_get_sleep_s", "connector_get_max_wait_first_chunk", "connector_get_max_wait"),
    "relays find each other; no port or store has to be named": (
        "zmq_port", "rpc_port", "metadata_server", "master", "segment", "localbuf", "host"),
    "the network library decides this": (
        "backend_type", "backends", "xgmi_num_streams", "xgmi_num_events", "qp_per_transfer", "num_worker_threads", "post_batch_size"),
}  # fmt: skip
"""Keys of ``extra`` without a counterpart, by the reason."""

_REASONS = {key: reason for reason, keys in DROPPED.items() for key in keys}
_END = re.compile(r"(?:from|to)_stage_(\d{1,3})")


def connector(context: Context, setting: Setting) -> Outcome:
    """Return the outcome of a key below ``connectors``."""
    name, *keys = setting.keys
    parts = {each.keys[1:]: each.value for each in context.connectors[name]}
    own = parts.get(("name",))
    known = [*CLASSES, *UNKNOWN_HERE]
    if keys == ["name"] and own not in known:
        return refuse(f"no connector class is called {own!r}{did_you_mean(own, known)}")
    if not keys or (keys[0] == "extra" and len(keys) == 1):
        return holds("no settings") if setting.value in ({}, None) else refuse("must map `name` and `extra`")
    if ("name",) not in parts:
        return refuse("its connector has no `name`")
    if keys[0] not in ("name", "extra"):
        return refuse(f"a connector has `name` and `extra`{did_you_mean(keys[0], ('name', 'extra'))}")
    if name not in _used(context):
        return note("no stage names this connector, there or here")
    if keys[0] == "extra":
        return _extra(context, setting, name, keys[1:], own)
    if own in UNKNOWN_HERE:
        return note("no relay here is one of it; the default relay carries the same data. Others: docs/relays.md")
    relay = CLASSES[str(own)]
    if relay not in context.target.registry.names("omni_relays"):
        return refuse(f"needs the relay {relay!r}: pip install omni-relay-{relay}")
    if not _preset(context, name):
        return holds("shm is the default relay")
    return take((("relays", name, "backend"), relay))


def edge_end(place: Place) -> Outcome:
    """``input_connectors`` and ``output_connectors``: the connector of one edge, here the relay of the stage that sends."""
    keys, context = place.setting.keys, place.context
    if len(keys) == 1 and place.value in ({}, None):
        return holds("no connectors")
    match = _END.fullmatch(keys[1]) if len(keys) == 2 else None
    wanted = "from_stage_" if keys[0] == "input_connectors" else "to_stage_"
    if match is None or not keys[1].startswith(wanted):
        return refuse(f"must be {wanted}N with the name of a connector")
    name, known = place.value, [*context.connectors]
    if name not in known:
        return refuse(f"no connector is called {name!r}{did_you_mean(name, known)}; vllm-omni would use shared memory")
    other = int(match[1])
    source, target = (other, place.number) if wanted == "from_stage_" else (place.number, other)
    senders, receivers = context.stages(source), context.stages(target)
    if not senders or not receivers:
        return refuse(f"there is no stage {other} here{_numbers(context.target)}")
    sender = next((each for each in senders if context.target.reaches((each,), receivers)), None)
    receiver = receivers[0]
    if sender is None:
        return refuse(
            f"in {context.target.name}, {senders[-1]} sends nothing to {receiver}; the topology is the pipeline's"
        )
    others = _relays_of(context, source) - {name}
    if others:
        return refuse(
            f"{sender} would send by {' and '.join(sorted({str(name), *others}))}; a stage here sends by one relay"
        )
    own = next((each.value for each in context.connectors[name] if each.keys[1:] == ("name",)), None)
    if own in UNKNOWN_HERE or not _preset(context, name):
        return holds(f"{sender} sends to {receiver} by the default relay")
    return take(((*section(place.setting.platform), "stages", sender, "relay"), name))


def model_key(target: Target, key: str, value: Any) -> Outcome | None:
    """Return the outcome of a key of the model itself, by the pipeline's declaration; ``None`` if it declares none."""
    declared = target.declaration
    if key in declared.paths:
        return _written(target, declared.paths[key], value)
    if (reason := declared.reason(key, value)) is not None:
        return holds(reason)
    return note(declared.notes[key]) if key in declared.notes else None


def _written(target: Target, path: str, value: Any) -> Outcome:
    """Write a value to the path that a pipeline declares for it; its type is that of the argument's default."""
    parts = tuple(path.split("."))
    if parts[0] not in target.all_stages:
        return note(f"{target.name} has no stage {parts[0]}, for which it is meant")
    default = (target.parameters(parts[0]) or {}).get(parts[-1]) if len(parts) == 3 else None
    try:
        kind = type(ast.literal_eval(default or "None"))
    except (ValueError, SyntaxError):  # a name
        kind = type(None)
    readers: dict[type, values.Reader] = {int: values.whole, float: values.number, bool: values.flag, str: values.text}
    try:
        reader = values.dtype if parts[-1] == "dtype" else readers.get(kind, values.scalar)
        found = reader(value)
    except ValueError as error:
        return refuse(f"{error}, is {value!r}")
    return take((("stages", *parts), found))


def _extra(context: Context, setting: Setting, name: str, keys: list[str], own: Any) -> Outcome:
    key, value = keys[0], setting.value
    if len(keys) > 1 and key not in _REASONS:
        return refuse("must be a single value")
    declared = model_key(context.target, key, value)
    if declared is not None:
        return declared
    if key == "shm_threshold_bytes" and own == SHM:
        try:
            return take((("relays", name, "inline_bytes"), values.whole(value)))
        except ValueError as error:
            return refuse(f"{error}, is {value!r}")
    if (key == "host" and value == "auto") or (key == "device_name" and value == ""):
        return holds("nothing is chosen by it")
    if own in UNKNOWN_HERE and key in (*_REASONS, *FIELDS, "memory_pool_size", "memory_pool_device"):
        return note(f"is of {own}")
    if key in FIELDS and CLASSES.get(str(own)) == "mooncake":
        return take((("relays", name, *FIELDS[key].split(".")), value))
    if key == "memory_pool_size":
        return _pool(name, value)
    if key == "memory_pool_device":
        return (
            take((("relays", name, "device"), "cpu")) if value == "cpu" else note("tensors stay on the stage's device")
        )
    if key in _REASONS:
        return note(_REASONS[key])
    known = [
        *_REASONS,
        *FIELDS,
        "shm_threshold_bytes",
        "memory_pool_size",
        "memory_pool_device",
        *context.target.declaration.known,
    ]
    return refuse(f"neither a connector nor {context.target.name} has this key{did_you_mean(key, known)}")


def _pool(name: str, value: Any) -> Outcome:
    if isinstance(value, bool) or not isinstance(value, int) or value < 2**20:
        return refuse(f"must be a number of bytes, at least 1 MiB, is {value!r}")
    return take((("relays", name, "slot_size_mb"), max(1, value // 2**20 // CREDITS)), text=f"with {CREDITS} credits")


def _preset(context: Context, name: str) -> bool:
    """Return whether a connector becomes a preset of ``relays``: if it is more than shared memory as it is by default."""
    parts = {each.keys[1:]: each.value for each in context.connectors[name]}
    own = parts.get(("name",))
    return own in CLASSES and (own != SHM or ("extra", "shm_threshold_bytes") in parts)


def _used(context: Context) -> set[str]:
    return {
        str(each.value)
        for each in context.of_scope(STAGE)
        if each.keys and each.keys[0] in ("input_connectors", "output_connectors")
    }


def _relays_of(context: Context, source: int) -> set[str]:
    """Return the connectors by which a stage sends, as either end names them."""
    found = set()
    for each in context.of_scope(STAGE):
        if len(each.keys) == 2 and each.platform is None:
            sends = each.keys[0] == "output_connectors" and each.stage == source
            if sends or each.keys == ("input_connectors", f"from_stage_{source}"):
                found.add(str(each.value))
    return found


def _numbers(target: Target) -> str:
    return f"; there are: {json.dumps(target.numbers)}"
