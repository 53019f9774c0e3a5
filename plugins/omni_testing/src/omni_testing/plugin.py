"""Conformance of a plugin: it must load light, name things once, answer probes, and point at things that exist."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, ClassVar

from omni_core.api import Component, load_plugins
from omni_core.runtime_api import PluginRecord

IMPORT_SECONDS = 0.02
"""Seconds that the import of an entry point's module may take, beyond omni's own hookspecs."""

HEAVY = ("torch", "transformers", "numpy")

_ATTEMPTS = 15

_MEASURE = """
import contextlib, sys, time
from omni_core.api import load_plugins  # what the process that discovers plugins has loaded before
begin = time.process_time()
with contextlib.redirect_stdout(sys.stderr):
    __import__(sys.argv[1])
print(time.process_time() - begin, *[name for name in sys.argv[2:] if name in sys.modules])
"""

_RESOLVE = """
import sys
from omni_core.references import load
for reference in sys.argv[1:]:
    load(reference)
"""


class PluginConformance:
    """Subclass it with the name of your entry point in the group ``omni``.

    Attributes:
        entry_point: its name.
        targets_need: importable modules without which the components' targets cannot be imported (``("torch",)``).
    """

    entry_point: ClassVar[str]
    targets_need: ClassVar[tuple[str, ...]] = ()

    def module(self) -> str:
        """Return the name of the module that the entry point names."""
        return self._entry_point().module

    def _entry_point(self) -> EntryPoint:
        found = [each for each in entry_points(group="omni") if each.name == self.entry_point]
        assert found, f"no entry point {self.entry_point!r} in the group 'omni'; is the distribution installed?"
        return found[0]

    def components(self) -> list[tuple[str, Component]]:
        """Return what the plugin provides: hook and component."""
        module: Any = importlib.import_module(self.module())
        return [
            (name, component)
            for name in dir(module)
            if hasattr(getattr(module, name), "omni_impl")
            for component in getattr(module, name)()
        ]

    def _record(self) -> PluginRecord:
        (record,) = [each for each in load_plugins().records if each.name == self.entry_point]
        return record

    def test_it_imports_in_no_time_and_without_heavy_libraries(self) -> None:
        command = [sys.executable, "-c", _MEASURE, self.module(), *HEAVY]
        best = float("inf")
        for _ in range(_ATTEMPTS):  # a busy machine makes some of them slow
            seconds, *heavy = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=60
            ).stdout.split()
            assert not heavy, f"importing the plugin imports {', '.join(heavy)}"
            best = min(best, float(seconds))
            if best < IMPORT_SECONDS:
                return
        raise AssertionError(f"importing the plugin takes {best * 1e3:.0f} ms")

    def test_its_entry_point_declares_its_api_levels(self) -> None:
        levels = self._record().levels
        for name in {hook for hook, _ in self.components()}:
            hook = load_plugins().hooks[name]
            wanted = f"its entry point must name the API level: {self.module()} [{hook.plural}-{hook.level}]"
            assert hook.level in levels.get(name, ()), wanted

    def test_it_is_loaded_without_complaint(self) -> None:
        record = self._record()
        assert record.status.value not in ("broken", "incompatible"), record.reason
        assert not [each for each in record.warnings if "its import takes" not in each]  # measured by a test of its own

    def test_the_kinds_that_it_defines_are_documented(self) -> None:
        for hook in self._record().hooks.values():
            text = hook.specification.__doc__ or ""
            assert "Target" in text, f"{hook.name}: its docstring must say what a component's target is (Target: ...)"
            assert hook.specification() == [], f"{hook.name}: a specification must return []"

    def test_its_names_are_unique(self) -> None:
        assert self.components() or self._record().hooks, "it provides nothing"
        own = [(hook, component.name) for hook, component in self.components()]
        assert len(own) == len(set(own))
        titles = tuple(f"{load_plugins().hooks[hook].kind} {name!r}:" for hook, name in own)
        clashes = [line for line in load_plugins().duplicates() if line.startswith(titles)]
        assert not clashes, clashes

    def test_everything_has_a_summary(self) -> None:
        for _, component in self.components():
            assert component.summary, component.name
            assert "\n" not in component.summary, component.name

    def test_probes_answer(self) -> None:
        for _, component in self.components():
            answer = component.probe() if component.probe is not None else None
            assert answer is None or (isinstance(answer, str) and answer), component.name

    def test_its_targets_resolve_in_a_new_process(self) -> None:
        for name in self.targets_need:
            importlib.import_module(name)
        here = [each for _, each in self.components() if all(find_spec(name) for name in each.requires)]
        targets = [component.target for component in here]
        done = subprocess.run(
            [sys.executable, "-c", _RESOLVE, *targets], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
