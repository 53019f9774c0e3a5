"""The installed kernels as they travel to the processes of a pipeline. Called in the parent; imports no torch."""

from __future__ import annotations

import logging

from omni_core.api import KernelComponent, PluginError, PluginRegistry
from omni_core.runtime_api import KernelSpec, normalize

logger = logging.getLogger(__name__)


def kernel_specs(registry: PluginRegistry) -> dict[str, list[KernelSpec]]:
    """The installed kernels by operation. Their probes are asked in the processes that run them, maybe on another host.

    One that cannot be used is left out with a warning: there is always the reference.
    """
    found: dict[str, list[KernelSpec]] = {}
    for name in registry.names("omni_kernels"):
        try:
            component = registry.get("omni_kernels", name)
            if not isinstance(component, KernelComponent):
                raise PluginError(f"the kernel {name!r} is a {type(component).__name__}; it must be a KernelComponent")
            record = next(each for each in registry.components("omni_kernels") if each[0] is component)[1]
            plugin = f"{record.name} ({record.distribution})"
            found.setdefault(component.operation, []).append(_kernel(component, plugin))
        except PluginError as error:
            logger.warning("a kernel is not used: %s", error)
    return found


def _kernel(component: KernelComponent, plugin: str) -> KernelSpec:
    probe = component.probe
    reference = None if probe is None else f"{probe.__module__}:{getattr(probe, '__qualname__', '<unnamed>')}"
    if reference is not None and "<" in reference:
        raise PluginError(
            f"the probe of {component.name!r} is {reference}, which other processes cannot import; make it a function of a module"
        )
    return KernelSpec(
        name=component.name,
        device=component.device,
        dtypes=list(component.dtypes),
        priority=component.priority,
        target=normalize(component.target),
        requires=list(component.requires),
        probe=reference,
        plugin=plugin,
    )
