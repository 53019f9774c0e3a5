"""The names of a new distribution, all made from one, and whether they are free."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from attrs import frozen

from omni_core.errors import OmniError
from omni_core.hookspecs import HOOKS
from omni_core.plugins import PluginRegistry
from omni_testing.authoring.kinds import Kind

_VALID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class AuthoringError(OmniError):
    """A new project cannot be written: its name is taken or impossible, or its folder is in use."""


@frozen
class ProjectNames:
    """One name in its two spellings: the distribution's (PEP 503), which is the component's too, and the module's."""

    distribution: str
    module: str

    @classmethod
    def of(cls, name: str) -> ProjectNames:
        """The names of a distribution called ``name``.

        Raises:
            AuthoringError: no distribution or no module can be called so.
        """
        if not _VALID.fullmatch(name):
            raise AuthoringError(
                f"{name!r} cannot be a distribution's name: letters, digits, '-', '_' and '.', a letter or digit at both ends"
            )
        normal = re.sub(r"[-_.]+", "-", name).lower()
        module = normal.replace("-", "_")
        if not module.isidentifier() or keyword.iskeyword(module):
            raise AuthoringError(
                f"{name!r} would be imported as {module!r}, which Python does not allow; begin with a letter and use no keyword"
            )
        return cls(normal, module)

    def check_free(self, kind: Kind, registry: PluginRegistry, commands: Collection[str]) -> None:
        """Make sure that nothing in this environment has one of the names already. ``commands``: what ``omni`` has.

        Raises:
            AuthoringError: something has; the message says what.
        """
        taken = self._taken_by(kind, registry, commands)
        if taken is not None:
            raise AuthoringError(f"{self.distribution!r} is taken: {taken}; choose another name")

    def _taken_by(self, kind: Kind, registry: PluginRegistry, commands: Collection[str]) -> str | None:
        try:
            return f"{distribution(self.distribution).metadata['Name']} is installed here"
        except PackageNotFoundError:
            pass
        if self.module in sys.stdlib_module_names:
            return f"{self.module} is a module of Python's own"
        spec = find_spec(self.module)
        if spec is not None and spec.origin is not None:
            return f"{self.module} can be imported already, from {spec.origin}"
        for record in registry.records:
            if record.name == self.distribution:
                return f"plugin {record.title} has this name"
        for component, record in registry.components(kind.hook):
            if component.name == self.distribution:
                return f"plugin {record.title} provides a {HOOKS[kind.hook]} of this name"
        if kind.hook == "omni_commands" and self.distribution in commands:
            return f"`omni {self.distribution}` is a command already"
        return None
