"""The names of a new distribution, all made from one, and the check that they are free."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from attrs import frozen

from omni_core.api import HOOKS, OmniError, PluginRegistry
from omni_testing.authoring.kinds import KINDS

_VALID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class AuthoringError(OmniError):
    """A new project cannot be written: its name is taken or impossible, or its folder is in use."""


@frozen
class ProjectNames:
    """The names of a project: its distribution (normalised as PEP 503 does) and its module; others are made from these."""

    distribution: str
    module: str

    @classmethod
    def of(cls, name: str) -> ProjectNames:
        """Return the names of a distribution called ``name``.

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

    @property
    def plugin(self) -> str:
        """The entry point's name: ``relay-file`` for a distribution ``omni-relay-file``."""
        return self.distribution.removeprefix("omni-")

    def component(self, kind: str) -> str:
        """Return the component's name: ``file`` for a relay of ``omni-relay-file``. ``kind`` is a key of ``KINDS``."""
        return self.plugin.removeprefix(f"{kind}-")

    def check_free(self, kind: str, registry: PluginRegistry, commands: Collection[str]) -> None:
        """Refuse names that something in this environment has already. ``commands``: those of ``omni``.

        Raises:
            AuthoringError: a name is taken; the message says by what.
        """
        taken = self._taken_by(kind, registry, commands)
        if taken is not None:
            raise AuthoringError(f"{self.distribution!r} is taken: {taken}; choose another name")

    def _taken_by(self, kind: str, registry: PluginRegistry, commands: Collection[str]) -> str | None:
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
            if record.name == self.plugin:
                return f"plugin {record.title} has this name"
        hooks, name = [HOOKS[each] for each in KINDS[kind].hooks], self.component(kind)
        for hook in hooks:
            for component, record in registry.components(hook.name):
                if component.name == name:
                    return f"plugin {record.title} provides a {hook.kind} of this name"
        if kind == "command" and name in commands:
            return f"`omni {name}` is a command already"
        return None
