"""One command of an earlier API level. Importing it fails, as such a plugin may."""

from omni_core.hookspecs import Component, a_name_that_has_gone, hookimpl  # type: ignore[attr-defined]


@hookimpl
def omni_commands():
    return [Component("greet", "omni_old_plugin.commands:greet", a_name_that_has_gone)]
