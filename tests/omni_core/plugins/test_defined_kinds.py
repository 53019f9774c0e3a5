"""Kinds of components that a plugin defines and others provide: found, checked, refused and named like those of the core."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from omni_cli.plugins import check, list_, show
from omni_core.errors import PluginError
from omni_core.hookspecs import Component, hookspec
from omni_core.plugins.discovery import PluginRecord, PluginStatus, discover
from omni_core.plugins.registry import PluginRegistry

LOADED, BROKEN, INCOMPATIBLE = PluginStatus.LOADED, PluginStatus.BROKEN, PluginStatus.INCOMPATIBLE

HEADER = "from attrs import field, frozen\nfrom omni_core.hookspecs import Component, hookimpl, hookspec\n"

DEFINES = (
    HEADER
    + '''
@frozen
class Detector(Component):
    rate: int = field(kw_only=True)

@hookspec(kind="voice detector", level=2, component=Detector)
def omni_voice_detectors():
    """Voice detectors. Target: a function."""
    return []
'''
)

PROVIDES = """
from omni_core.hookspecs import hookimpl
from definer_plugin import Detector{imported}

def probe():
    return {probe}

@hookimpl
def omni_voice_detectors():
    return [Detector({name!r}, "json:loads", "hears", probe=probe, rate=16000)]
"""


def provides(name: str, probe: str = "None", imported: str = "") -> str:
    return PROVIDES.format(name=name, probe=probe, imported=imported)


Install = Callable[..., PluginRegistry]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install plugins given as ``name -> (extras, source)``, or the source alone; a registry of these, without what ``denied`` names."""

    def make(denied: str = "", apis_of: Mapping[str, str] = {}, **plugins: str | tuple[str, str]) -> PluginRegistry:
        for name, given in plugins.items():
            extras, source = given if isinstance(given, tuple) else ("", given)
            (tmp_path / f"{name}_plugin.py").write_text(source)
            info = tmp_path / f"{name}-2.5.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: 2.5\n")
            apis = f"[omni.apis]\n{apis_of[name]}\n" if name in apis_of else ""
            (info / "entry_points.txt").write_text(f"[omni]\n{name} = {name}_plugin {extras}\n{apis}")
            monkeypatch.delitem(sys.modules, f"{name}_plugin", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        return PluginRegistry([record for record in discover(None, denied) if record.name in plugins])

    return make


def of(registry: PluginRegistry, name: str) -> PluginRecord:
    return next(record for record in registry.records if record.name == name)


def test_components_of_a_kind_that_a_plugin_defines_are_found(install: Install) -> None:
    registry = install(
        definer=DEFINES,
        a=("[voice-detectors-2]", provides("first")),  # discovered before the kind is known
        z=("[voice-detectors-1, voice-detectors-2]", provides("last", imported=", omni_voice_detectors as spec")),
    )
    assert {record.name: (record.status, record.warnings) for record in registry.records} == {
        name: (LOADED, []) for name in ("definer", "a", "z")
    }
    assert registry.names("omni_voice_detectors") == ["first", "last"]
    assert registry.get("omni_voice_detectors", "first").target == "json:loads"
    with pytest.raises(PluginError, match="no voice detector is called 'fist'; did you mean 'first'"):
        registry.get("omni_voice_detectors", "fist")
    assert [(hook, component.name) for hook, component, _, answer in registry.check() if answer is None] == [
        ("omni_voice_detectors", "first"),
        ("omni_voice_detectors", "last"),
    ]


def test_a_plugin_may_provide_components_of_its_own_kind(install: Install) -> None:
    own = "from definer_plugin import omni_voice_detectors as spec\n"
    registry = install(definer=DEFINES, both=("[horns-1]", HEADER + BOTH), reads=own + provides("x"))
    assert registry.names("omni_horns") == ["loud"]
    assert of(registry, "both").hooks.keys() == {"omni_horns"}
    assert of(registry, "reads").hooks == {}, "a plugin that imports a specification does not define it"


BOTH = """
@hookspec(kind="horn", level=1)
def omni_horns():
    return []

spec = omni_horns

@hookimpl
def omni_horns():
    return [Component("loud", "json:loads", "a horn")]
"""


@pytest.mark.parametrize(
    ("extras", "source", "status", "reason"),
    [
        (
            "[voice-detectors-1]",
            provides("x"),
            INCOMPATIBLE,
            r"2 of voice-detectors; upgrade dist-p \(2.5 is installed",
        ),
        ("[voice-detectors-3]", "import nothing_like_it\n", INCOMPATIBLE, "dist-definer offers.*upgrade dist-definer"),
        ("[voice-detektors-2]", provides("x"), BROKEN, "no hook for voice-detektors; did you mean 'voice-detectors'"),
        ("[voice-detectors-2]", "import nothing_like_it\n", BROKEN, "No module named 'nothing_like_it'"),
        ("", provides("x").replace("return [Detector", "return [dict"), BROKEN, "TypeError|it must return a list"),
        ("", provides("x").replace('"json:loads"', '"loads"'), BROKEN, "'loads' is not a reference"),
    ],
)
def test_levels_and_mistakes_are_those_of_any_kind(
    install: Install, extras: str, source: str, status: PluginStatus, reason: str
) -> None:
    record = of(install(definer=DEFINES, p=(extras, source)), "p")
    assert record.status is status, record.reason
    assert re.search(reason, record.reason), record.reason


@pytest.mark.parametrize("how", ["denied", "broken", "breaks when it is asked"])
def test_without_the_plugin_that_defines_a_kind_nothing_provides_it(install: Install, how: str) -> None:
    source = {"broken": "1/0\n", "breaks when it is asked": DEFINES + "@hookimpl\ndef omni_relays():\n    1/0\n"}.get(
        how, DEFINES
    )
    provider = HEADER + "@hookimpl\ndef omni_voice_detectors():\n    return [Component('x', 'json:loads', 's')]\n"
    registry = install(denied="definer" if how == "denied" else "", definer=source, p=("[voice-detectors-2]", provider))
    assert of(registry, "p").status is BROKEN
    assert "no hook for voice-detectors" in of(registry, "p").reason
    assert "omni_voice_detectors" not in registry.hooks
    with pytest.raises(PluginError, match="no plugin that works defines the hook 'omni_voice_detectors'"):
        registry.get("omni_voice_detectors", "x")


def test_a_kind_that_is_defined_twice_is_refused_and_so_is_one_of_the_core(install: Install) -> None:
    registry = install(definer=DEFINES, other=DEFINES, greedy=DEFINES.replace("omni_voice_detectors", "omni_relays"))
    assert {record.name: record.status for record in registry.records} == dict.fromkeys(
        ("definer", "other", "greedy"), BROKEN
    )
    assert (
        of(registry, "definer").reason
        == "it defines the hook 'omni_voice_detectors', as 'other' of dist-other 2.5 does"
    )
    assert of(registry, "greedy").reason == "it defines the hook 'omni_relays', as the core does"


def test_a_name_that_is_provided_twice_is_an_error_that_names_both(install: Install) -> None:
    registry = install(definer=DEFINES, a=provides("same"), b=provides("same"))
    assert registry.duplicates() == ["voice detector 'same': 'a' of dist-a 2.5 and 'b' of dist-b 2.5"]
    with pytest.raises(PluginError, match=r"the voice detector 'same' is provided twice, by plugin 'a'.*'b'"):
        registry.get("omni_voice_detectors", "same")


def test_the_command_line_shows_kinds_and_asks_probes(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = install(definer=DEFINES, p=("[voice-detectors-2]", provides("deaf", probe="'no ears'")))
    monkeypatch.setattr("omni_cli.plugins.load_plugins", lambda: registry)
    listed = CliRunner().invoke(list_, catch_exceptions=False).output
    assert "defines the kind: voice detector (voice-detectors-2)" in listed
    assert re.search(r"p +loaded +dist-p 2.5 \(API level 2 of voice-detectors\)\n +voice detector: deaf\n", listed), (
        listed
    )
    assert CliRunner().invoke(check, catch_exceptions=False).output == "no  voice detector deaf (dist-p): no ears\n"
    shown = CliRunner().invoke(show, ["p"], catch_exceptions=False).output
    assert "omni_voice_detectors (the plugin that defines it offers API level 2)" in shown
    assert "defines:      omni_voice_detectors, level 2" in CliRunner().invoke(show, ["definer"]).output


@pytest.mark.parametrize(
    ("name", "level", "component"), [("voice_detectors", 1, Component), ("omni_x", 0, Component), ("omni_x", 1, dict)]
)
def test_a_specification_that_cannot_be_one_is_refused(name: str, level: int, component: type) -> None:
    def specification() -> list[Component]:
        return []

    specification.__name__ = name
    with pytest.raises(TypeError, match=f"hookspec {name}: the name must begin with omni_"):
        hookspec("thing", level, component)(specification)


@pytest.mark.parametrize(
    ("extras", "status", "reason"),
    [
        ("[toolkit-2]", LOADED, ""),
        ("[toolkit-1, toolkit-2]", LOADED, ""),
        ("[toolkit-1]", INCOMPATIBLE, r"dist-kit offers API level 2 of toolkit; upgrade dist-p \(2.5 is installed"),
        ("[toolkit-3]", INCOMPATIBLE, r"dist-kit offers API level 2 of toolkit; upgrade dist-kit \(2.5 is installed"),
        ("[tolkit-2]", BROKEN, "no hook for tolkit; did you mean 'toolkit'"),
    ],
)
@pytest.mark.parametrize("denied", ["", "kit"])
def test_a_python_interface_has_a_level_of_its_own(
    install: Install, extras: str, status: PluginStatus, reason: str, denied: str
) -> None:
    """It is read from metadata: a plugin for another level is not imported, and one for this level works without the plugin beside it."""
    source = HEADER + "@hookimpl\ndef omni_relays():\n    return [Component('x', 'json:loads', 's')]\n"
    registry = install(
        denied,
        {"kit": "toolkit = kit.api [toolkit-2]"},
        kit=source.replace("relays", "commands"),
        p=(extras.replace("]", ", relays-1]"), source if status is not INCOMPATIBLE else "raise SystemExit\n"),
    )
    record = of(registry, "p")
    assert (record.status, record.warnings) == (status, [])
    assert re.search(reason, record.reason), record.reason


def test_an_interface_that_cannot_be_read_is_not_there(install: Install) -> None:
    registry = install(apis_of={"kit": "toolkit = kit.api [2]"}, kit="", p=("[toolkit-2]", ""))
    assert "no hook for toolkit" in of(registry, "p").reason
