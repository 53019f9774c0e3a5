"""Plugins: which are installed, what they provide, and which of them are broken.

``load_plugins`` finds the entry points of the group ``omni``, imports each plugin by itself and returns a ``PluginRegistry``. A
``PluginRecord`` says what became of one plugin; the registry resolves the names of components.
"""

from omni_core.plugins.discovery import PluginRecord, PluginStatus
from omni_core.plugins.isolation import PluginFault, isolated
from omni_core.plugins.registry import Defect, PluginRegistry, load_plugins

__all__ = ["Defect", "PluginFault", "PluginRecord", "PluginRegistry", "PluginStatus", "isolated", "load_plugins"]
