"""From a capsule to the stage that is run again: its launch spec, checked, and its process's kernels and environment.

A capsule names what is imported and called, so one from somebody else is as a program from somebody else. Without ``trust`` it may name
only what installed plugins register (:mod:`omni_capsules.registered`), and its environment variables are not set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import attrs
from attrs import evolve, field, frozen

from omni_capsules.capsule import CONVERTER, MISFITS, Capsule, CapsuleError, StageRecord
from omni_capsules.events import INPUTS
from omni_capsules.registered import unregistered
from omni_core.errors import did_you_mean
from omni_core.launch.prepare import ENVIRONMENT, KERNELS
from omni_core.plugins import load_plugins
from omni_core.processes.main import PREPARE
from omni_core.protocol.specs import KernelSpec, StageSpec
from omni_core.references import load
from omni_core.stage_logs import stage_environment


@frozen
class Rebuilt:
    """A stage that can be run again: one attempt of the request in it. ``withheld``: what it is run without, in words."""

    record: StageRecord
    spec: StageSpec
    kernels: dict[str, list[KernelSpec]]
    env: dict[str, str]
    withheld: list[str] = field(factory=list)


def chosen(capsule: Capsule, stage: str | None) -> StageRecord:
    """Return the last attempt in a stage; without one, in the stage that failed, else in the one that took longest to make its outputs.

    Raises:
        CapsuleError: there is no record of it.
    """
    names = list(dict.fromkeys(record.stage for record in capsule.stages))
    if not names:
        why = "; ".join(f"{name}: {reason}" for name, reason in capsule.missing.items())
        raise CapsuleError(f"the capsule holds no stage{f' ({why})' if why else ''}")
    if stage is None:
        guilty = (capsule.error or {}).get("stage")
        stage = guilty if guilty in names else max(capsule.stages, key=_work).stage
    if stage not in names:
        raise CapsuleError(
            f"--stage {stage}: the capsule holds no such stage{did_you_mean(stage, names, listing='it holds')}"
        )
    return next(record for record in reversed(capsule.stages) if record.stage == stage)


def _work(record: StageRecord) -> int:
    """Return the time from when the scheduler began to the last event, in ns."""
    taken = record.first("taken")
    return record.events[-1].at - taken.at if taken is not None else 0


def rebuild(capsule: Capsule, record: StageRecord, *, model: str | None, device: str | None, trust: bool) -> Rebuilt:
    """Return the stage of a record as it is to be built here.

    Args:
        model: the folder of the checkpoint, in place of the one that was used. device: likewise.
        trust: run whatever it names, with its environment variables.

    Raises:
        CapsuleError: the capsule has no inputs of it, or what it names cannot be run here, or not without ``trust``, or it is damaged.
    """
    try:
        return _rebuilt(capsule, record, model=model, device=device, trust=trust)
    except MISFITS as error:
        raise CapsuleError(f"stage {record.stage!r}: a damaged capsule: {type(error).__name__}: {error}") from error


def _rebuilt(capsule: Capsule, record: StageRecord, *, model: str | None, device: str | None, trust: bool) -> Rebuilt:
    where = f"stage {record.stage!r}"
    if not record.inputs:
        raise CapsuleError(
            f"{where}: its inputs were not recorded; set capsules.inputs=true before the request that is to be run again"
        )
    for event in record.events:
        if event.kind in INPUTS and event.kind != "done" and event.data is None:
            why = event.detail.get("left_out", "no room in the capsule: capsules.size_mb")
            raise CapsuleError(f"{where}: an input was left out: {why}")
    process = capsule.processes.get(record.process)
    if process is None:
        raise CapsuleError(f"{where}: the capsule does not say how its process {record.process!r} was launched")
    spec = _stage_spec(process, record.stage)
    ranks = max(process.get("ranks", 1), spec.injected.get("tp_size", 1))
    if ranks > 1:
        raise CapsuleError(f"{where} has {ranks} ranks, and one process runs it again: that is not possible")
    injected = {**spec.injected, **_given(model_path=model, device=device)}
    number = "" if device is None else device.removeprefix("cuda:")
    gpu = spec.gpu if device is None else int(number) if number.isdecimal() else None
    spec = evolve(spec, injected=injected, gpu=gpu)
    path = spec.injected.get("model_path")
    if isinstance(path, str) and os.path.isabs(path) and not os.path.exists(path):
        raise CapsuleError(f"{where}: its checkpoint {path} is not here; say where it is: --model FOLDER")
    kernels = {operation: [_kernel(each) for each in kernels] for operation, kernels in process["kernels"].items()}
    recorded = CONVERTER.structure(process["env"], dict[str, str])
    if trust:
        return Rebuilt(record, spec, kernels, recorded)
    strange = unregistered(spec, capsule.pipeline, load_plugins())
    if strange:
        raise CapsuleError(
            f"{where}: no installed plugin registers what the capsule names: {', '.join(strange)}; if you know where it comes from: --trust"
        )
    env = {**ENVIRONMENT, **stage_environment()}
    withheld = [
        f"{name}: not set as then without --trust"
        for name, value in recorded.items()
        if name not in env and os.environ.get(name) != value
    ]
    return Rebuilt(record, spec, _installed(kernels, withheld), env, withheld)


def _installed(kernels: Mapping[str, list[KernelSpec]], missing: list[str]) -> dict[str, list[KernelSpec]]:
    """Return the installed kernels of the same operations and names, as they are registered here; note the others as missing."""
    registered = load(KERNELS)(load_plugins()) if find_spec("omni_torch") is not None else {}
    here = {operation: {each.name: each for each in specs} for operation, specs in registered.items()}
    found: dict[str, list[KernelSpec]] = {}
    for operation, specs in kernels.items():
        own = here.get(operation, {})
        found[operation] = [own[each.name] for each in specs if each.name in own]
        missing += [f"kernel {each.name!r} of {operation}: not installed" for each in specs if each.name not in own]
    return found


def enter(rebuilt: Rebuilt) -> list[str]:
    """Let this process be as the recorded one was: its environment, kernels and settings of torch. Call it before torch is imported.

    Returns:
        What is not here, in words.
    """
    for name, value in rebuilt.env.items():
        os.environ.setdefault(name, value)
    if find_spec("omni_torch") is None:
        return rebuilt.withheld
    here = {
        operation: [each for each in kernels if find_spec(each.target.partition(".")[0].partition(":")[0]) is not None]
        for operation, kernels in rebuilt.kernels.items()
    }
    gone = sorted(
        {
            each.plugin or each.name
            for name, kernels in rebuilt.kernels.items()
            for each in kernels
            if each not in here[name]
        }
    )
    load(PREPARE)(here, rebuilt.spec.gpu, [])
    return rebuilt.withheld + [f"kernels of {name}: not here" for name in gone]


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _stage_spec(process: Mapping[str, Any], stage: str) -> StageSpec:
    given = next((each for each in process["stages"] if each.get("name") == stage), None)
    if given is None:
        raise CapsuleError(f"the capsule does not say how stage {stage!r} is built")
    spec: StageSpec = _made(StageSpec, given, f"stage {stage!r}")
    return spec


def _kernel(given: Mapping[str, Any]) -> KernelSpec:
    spec: KernelSpec = _made(KernelSpec, given, f"kernel {given.get('name')!r}")
    return spec


def _made(kind: Any, given: Mapping[str, Any], what: str) -> Any:
    known = {each.name for each in attrs.fields(kind)}
    unknown = [name for name, value in given.items() if name not in known and value not in (None, [], {}, "", False)]
    if unknown:
        raise CapsuleError(f"{what} was built with {unknown[0]!r}, which this version of omni-core does not know")
    try:
        return CONVERTER.structure({name: value for name, value in given.items() if name in known}, kind)
    except MISFITS as error:
        raise CapsuleError(f"{what}: {type(error).__name__}: {error}") from None
