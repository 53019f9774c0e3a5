"""What every plugin must do: load light, name things once, answer probes, and point at things that exist."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, ClassVar

from omni_core.hookspecs import API_LEVELS, HOOKS, Component, kind_of
from omni_core.plugins import load_plugins
from omni_core.plugins.levels import fits, read_declaration

IMPORT_SECONDS = 0.02
"""What importing an entry point's module may take, beyond omni's own hookspecs."""

HEAVY = ("torch", "transformers", "numpy")

_ATTEMPTS = 15

_MEASURE = """
import sys, time
import omni_core.hookspecs
begin = time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - begin, *[name for name in sys.argv[2:] if name in sys.modules])
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
        """The module that the entry point names."""
        found = [each for each in entry_points(group="omni") if each.name == self.entry_point]
        assert found, f"no entry point {self.entry_point!r} in the group 'omni'; is the distribution installed?"
        return found[0].module

    def components(self) -> list[tuple[str, Component]]:
        """What the plugin provides: hook and component."""
        module: Any = importlib.import_module(self.module())
        return [
            (name, component)
            for name in dir(module)
            if hasattr(getattr(module, name), "omni_impl")
            for component in getattr(module, name)()
        ]

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

    def test_it_says_which_api_levels_it_supports(self) -> None:
        declaration = read_declaration(self.module())
        assert declaration.supports is not None, (
            "the module must say, as a literal at its top: supports = (lowest API level, highest), "
            'or supports = {"relays": (lowest, highest), ...}'
        )
        hooks = {hook for hook, _ in self.components()}
        unsaid = [kind_of(hook) for hook in hooks if hook not in declaration.supports]
        assert not unsaid, f"it provides {', '.join(unsaid)}, and `supports` says nothing of them"
        for hook in hooks:
            level = API_LEVELS[hook]
            assert fits(hook, declaration.supports[hook]), f"this core has level {level} of {kind_of(hook)}"

    def test_its_hooks_can_be_seen_without_an_import(self) -> None:
        seen = read_declaration(self.module()).hooks
        assert {hook for hook, _ in self.components()} <= set(seen), (
            "define the hooks in the module, or import them by name"
        )

    def test_it_is_loaded_without_complaint(self) -> None:
        (record,) = [each for each in load_plugins().records if each.name == self.entry_point]
        assert record.status.value not in ("broken", "incompatible"), record.reason

    def test_its_names_are_unique(self) -> None:
        assert self.components(), "it provides nothing"
        own = [(hook, component.name) for hook, component in self.components()]
        assert len(own) == len(set(own))
        titles = tuple(f"{HOOKS[hook]} {name!r}:" for hook, name in own)
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
