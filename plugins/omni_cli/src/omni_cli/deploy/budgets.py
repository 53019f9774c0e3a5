"""Devices and their memory, checked before a start: a missing device, one that processes share, budgets that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omni_core.api import ConfigError, gib
from omni_core.runtime_api import PlannedProcess


def problems(processes: Sequence[PlannedProcess], devices: Sequence[int] | None = None) -> list[str]:
    """Return what does not fit, and which setting to turn. ``devices``: each GPU's bytes; ``None`` if they are not known."""
    return [*_missing_devices(processes, devices), *_device_problems(processes, devices)]


def check(processes: Sequence[PlannedProcess], devices: Sequence[int] | None = None) -> None:
    """Raise a ConfigError with a line for each of :func:`problems`."""
    found = problems(processes, devices)
    if found:
        raise ConfigError("\n".join(found))


def _missing_devices(processes: Sequence[PlannedProcess], devices: Sequence[int] | None) -> Iterator[str]:
    if devices is None:
        return
    there = f"this host has {len(devices)} (0 to {len(devices) - 1})" if devices else "this host has none"
    for process in processes:
        for stage, gpu in process.gpus.items() if process.host is None else ():
            if gpu >= len(devices):
                yield f"stages[{stage}].gpu: GPU {gpu} is wanted, {there}; set it to one of them, or to null for the CPU"


def _device_problems(processes: Sequence[PlannedProcess], devices: Sequence[int] | None) -> Iterator[str]:
    places = {(process.host or "", process.gpu) for process in processes if process.gpu is not None}
    for host, gpu in sorted(places):
        tenants = [process for process in processes if process.gpu == gpu and (process.host or "") == host]
        capacity = devices[gpu] if devices is not None and not host and gpu < len(devices) else None
        unsaid = [name for process in tenants for name, budget in process.budgets().items() if budget is None]
        if len(tenants) > 1 and unsaid:
            names = ", ".join(process.name for process in tenants)
            named = ", ".join(dict.fromkeys(f"stages[{stage}].gpu" for process in tenants for stage in process.gpus))
            yield (
                f"stages[{unsaid[0]}].gpu_memory: required, because the processes {names} share GPU {gpu} ({named}); "
                'give it a budget such as "20GiB" or 0.5, another `gpu`, or the same `process`'
            )
        yield from _overbooked(gpu, capacity, tenants)


def _overbooked(gpu: int, capacity: int | None, tenants: list[PlannedProcess]) -> Iterator[str]:
    found = [each for process in tenants for each in process.budgets().items()]
    budgets = [(stage, budget) for stage, budget in found if budget is not None]
    wanted = sum(budget.of(capacity) or 0 for _, budget in budgets)
    shares = sum(budget.share or 0.0 for _, budget in budgets)
    if capacity is not None and wanted > capacity:
        too_much = f"{gib(wanted)} of the {gib(capacity)} of GPU {gpu}"
    elif shares > 1.0 + 1e-9:
        too_much = f"{shares:.0%} of GPU {gpu}"
    else:
        return
    parts = ", ".join(f"stages[{stage}].gpu_memory {budget}" for stage, budget in budgets)
    by_size = sorted(budgets, key=lambda each: -(each[1].of(capacity) or each[1].share or 0.0))
    largest, *others = [stage for stage, _ in by_size]
    moved = f"move one to another device (stages[{others[0]}].gpu)" if others else "use a larger device"
    yield (
        f"stages[{largest}].gpu_memory: budgets take {too_much} ({parts}); lower a `gpu_memory`, {moved}, "
        f"or shard the largest (stages[{largest}].tp_size, with a device per rank in its `gpu`)"
    )
