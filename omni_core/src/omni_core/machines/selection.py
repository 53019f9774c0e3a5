"""The launcher of a run: the one that its config names, else one for its hosts, else this machine."""

from __future__ import annotations

from pathlib import Path

from omni_core.config.schema import PipelineConfig
from omni_core.errors import PluginError
from omni_core.machines.launcher import Launcher, LauncherOptions
from omni_core.machines.local import LocalLauncher
from omni_core.plugins import PluginRegistry
from omni_core.plugins.advice import comes_with
from omni_core.references import load

_HOOK = "omni_launchers"
LOCAL, HOSTS = "local", "hosts"


def launcher_reference(config: PipelineConfig, registry: PluginRegistry) -> str | None:
    """Return the reference of the launcher that a config needs; ``None``: the built-in one.

    Raises:
        PluginError: no plugin provides it.
    """
    name = config.resolved_launcher.name
    if name == LOCAL:
        return None
    try:
        return registry.resolve_reference(_HOOK, name)
    except PluginError as error:
        if name == HOSTS:
            hosts = ", ".join(sorted({name for stage in config.stages for name in stage.hosts}))
            advice = comes_with("launchers", HOSTS, records=registry.records)
            wanted = f"stages of this pipeline run on other hosts ({hosts}); their launcher comes with {advice}"
            raise PluginError(f"{wanted} ({error})") from None
        raise PluginError(f"launcher.name: {error}") from error


def make_launcher(config: PipelineConfig, registry: PluginRegistry, directory: Path, run: str) -> Launcher:
    """Make the launcher of a run.

    Raises:
        PluginError: no plugin provides it. ConfigError: it cannot be used with this config, or here.
    """
    reference = launcher_reference(config, registry)
    options = LauncherOptions(run, directory, config, config.resolved_launcher.settings)
    launcher: Launcher = LocalLauncher(options) if reference is None else load(reference)(options)
    return launcher
