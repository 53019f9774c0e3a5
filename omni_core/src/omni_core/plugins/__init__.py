"""Plugins: discovery through entry points, isolation of the broken ones, and the registry of named components."""

from omni_core.plugins.discovery import PluginRecord, PluginStatus
from omni_core.plugins.registry import PluginRegistry, load_plugins

__all__ = ["PluginRecord", "PluginRegistry", "PluginStatus", "load_plugins"]
