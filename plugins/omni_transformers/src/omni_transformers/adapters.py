"""Models that other distributions add. Asked in the process that describes pipelines; never in a stage, which gets its factory resolved."""

from __future__ import annotations

from typing import Any

from omni_core.api import ConfigError, load, load_plugins
from omni_transformers.hooks import omni_transformers_adapters


def adapter_of(config: dict[str, Any]) -> Any:
    """Return the target of the adapter that claims a checkpoint by its ``config.json``; ``None``: none does.

    Raises:
        ConfigError: two do, or the target cannot be imported.
    """
    hook = omni_transformers_adapters.__name__
    found = [(each, record) for each, record in load_plugins().components(hook) if _claims(each, config)]
    if not found:
        return None
    if len(found) > 1:
        owners = " and ".join(f"{each.name!r} of plugin {record.title}" for each, record in found)
        names = " or ".join(record.name for _, record in found)
        raise ConfigError(f"two adapters claim the checkpoint: {owners}; OMNI_DISABLE_PLUGINS={names} leaves one out")
    [(component, _)] = found
    return load(component.target)


def _claims(component: Any, config: dict[str, Any]) -> bool:
    named = config.get("architectures")
    if isinstance(named, list) and not {*component.architectures}.isdisjoint(map(str, named)):
        return True
    if component.claims is None:
        return False
    return bool(load(component.claims)(config))
