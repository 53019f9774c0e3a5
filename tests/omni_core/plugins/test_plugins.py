"""Plugins: found by entry point, isolated when broken, refused when incompatible, and named in every error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from omni_core.cli.plugins import check
from omni_core.errors import PluginError
from omni_core.hookspecs import API_LEVELS, HOOKS, Component, hooks
from omni_core.plugins.discovery import PluginStatus, discover
from omni_core.plugins.levels import read_declaration
from omni_core.plugins.registry import PluginRegistry

HEADER = "from omni_core.hookspecs import Component, hookimpl\nsupports = (1, 1)\n"


def relay(name: str) -> str:
    return HEADER + f"@hookimpl\ndef omni_relays():\n    return [Component({name!r}, 'some.where:Relay', 'a relay')]\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Install plugins given as ``name -> source`` into a folder on the path; a registry of these alone."""

    def make(**sources: str) -> PluginRegistry:
        for name, source in sources.items():
            module = f"{name}_{abs(hash(str(tmp_path)))}"
            (tmp_path / f"{module}.py").write_text(source)
            info = tmp_path / f"{name}-2.5.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: 2.5\n")
            (info / "entry_points.txt").write_text(f"[omni]\n{name} = {module}\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        records = discover(os.environ.get("OMNI_PLUGINS"), os.environ.get("OMNI_DISABLE_PLUGINS"))
        return PluginRegistry([record for record in records if record.name in sources])

    return make


def status(registry: PluginRegistry, name: str) -> PluginStatus:
    return next(record.status for record in registry.records if record.name == name)


def test_a_plugin_is_found_and_its_components_resolve(install) -> None:  # type: ignore[no-untyped-def]
    registry = install(good=relay("mine"))
    assert registry.get("omni_relays", "mine").target == "some.where:Relay"
    assert registry.resolve_reference("omni_relays", "mine") == "some.where:Relay"
    assert registry.resolve_reference("omni_relays", "other.module.Thing") == "other.module:Thing"


@pytest.mark.parametrize(
    ("source", "expected", "reason"),
    [
        ("import nothing_like_this\n", PluginStatus.BROKEN, "nothing_like_this"),
        ("raise SystemExit(3)\n", PluginStatus.BROKEN, "SystemExit"),
        ("def broken(:\n", PluginStatus.BROKEN, "SyntaxError"),
        (HEADER + "@hookimpl\ndef omni_relays():\n    raise ValueError('inside')\n", PluginStatus.BROKEN, "inside"),
        (HEADER + "@hookimpl\ndef omni_relays():\n    return ['x']\n", PluginStatus.BROKEN, "list of Component"),
        (HEADER + "@hookimpl\ndef omni_relay():\n    return []\n", PluginStatus.BROKEN, "omni_relay"),
        ("supports = (7, 9)\nraise RuntimeError('imported')\n", PluginStatus.INCOMPATIBLE, "upgrade omni-core"),
        ("supports = (0, 0)\nraise RuntimeError('imported')\n", PluginStatus.INCOMPATIBLE, "upgrade dist-bad"),
    ],
)
def test_a_broken_plugin_stays_alone(install, source: str, expected: PluginStatus, reason: str) -> None:  # type: ignore[no-untyped-def]
    registry = install(bad=source, good=relay("mine"))
    record = next(record for record in registry.records if record.name == "bad")
    assert record.status is expected
    assert reason in record.reason
    assert bool(record.traceback) == (expected is PluginStatus.BROKEN)
    assert (record.distribution, record.version) == ("dist-bad", "2.5")
    assert registry.get("omni_relays", "mine")
    with pytest.raises(PluginError, match=r"dist-bad 2\.5.*omni plugins show bad"):
        registry.get("omni_relays", "missing")


RELAY = "def omni_relays():\n    return []\n"
COMMAND = "def omni_commands():\n    return []\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("supports = (2, 3)\n" + RELAY, "API level 2 to 3 of relays.*level 1 of relays; upgrade omni-core"),
        ("supports: tuple[int, int] = (0, 0)\n" + RELAY, "API level 0 of relays.*upgrade dist-bad \\(2.5 is installed"),
        (
            "supports = {'relays': (2, 2), 'commands': (1, 1)}\n" + RELAY + COMMAND,
            "2 of relays, this core.*upgrade omni-core",
        ),
        ("supports = {'relays': (2, 2), 'commands': (0, 0)}\n" + RELAY + COMMAND, "upgrade dist-bad.* and omni-core"),
        ("supports = {'relays': (2, 2), 'commands': (0, 0)}\nfrom x import omni_relays\n", "2 of relays, this core"),
    ],
)
def test_levels_are_checked_before_the_import(install, source: str, reason: str) -> None:  # type: ignore[no-untyped-def]
    registry = install(bad=source + "raise RuntimeError('imported')\n", good=relay("mine"))
    (record,) = [each for each in registry.records if each.name == "bad"]
    assert record.status is PluginStatus.INCOMPATIBLE, record.reason
    assert re.search(reason, record.reason), record.reason
    assert registry.get("omni_relays", "mine")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("supports = {'relays': (1, 2), 'commands': (7, 7)}\n", PluginStatus.LOADED),  # it has no command
        ("supports = {'schedulers': (1, 1)}\n", PluginStatus.LOADED),  # nothing said of its relays: taken as it is
        ("supports = tuple([0, 0])\n", PluginStatus.INCOMPATIBLE),  # computed: seen after the import
        ("supports = (2, 1)\n", PluginStatus.BROKEN),
        ("supports = 1\n", PluginStatus.BROKEN),
        ("supports = {'relay': (1, 1)}\n", PluginStatus.BROKEN),
        ("supports = {'relays': 1}\n", PluginStatus.BROKEN),
    ],
)
def test_levels_concern_what_a_plugin_provides(install, source: str, expected: PluginStatus) -> None:  # type: ignore[no-untyped-def]
    registry = install(one=relay("mine").replace("supports = (1, 1)\n", source))
    assert status(registry, "one") is expected, registry.records[0].reason
    if expected is PluginStatus.BROKEN:
        assert "supports" in registry.records[0].reason


def test_levels_of_one_kind_do_not_touch_another(install, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(API_LEVELS, "omni_relays", 2)
    command = relay("x").replace("omni_relays", "omni_commands")
    registry = install(old=relay("mine"), tool=command, both=HEADER.replace("1, 1", "1, 2") + relay("y")[len(HEADER) :])
    assert status(registry, "old") is PluginStatus.INCOMPATIBLE
    assert status(registry, "tool") is status(registry, "both") is PluginStatus.LOADED


def test_the_command_line_shows_levels_and_who_may_be_missing(install, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    install(ahead="supports = {'commands': (2, 3)}\n" + COMMAND, fine=relay("mine"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    def omni(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "omni_core.cli", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    reason = "it is made for API level 2 to 3 of commands, this core offers API level 1 of commands; upgrade omni-core (0.1.0"
    code, shown = omni("plugins", "list")
    assert (code, reason in shown) == (0, True), shown
    assert re.search(r"fine +loaded +dist-fine 2.5 \(API level 1\)", shown), shown
    code, shown = omni("plugins", "show", "ahead")
    assert (code, reason in shown, "made for:     API level 2 to 3 of commands" in shown) == (0, True, True), shown
    code, shown = omni("plugins", "show", "fine")
    assert "omni_relays (this core offers API level 1)" in shown
    code, shown = omni("plugins", "check", "ahead")
    assert (code, reason in shown, "mine" in shown) == (1, True, False), shown
    code, shown = omni("greet")
    assert code == 2
    assert f"No such command 'greet'; plugin 'ahead' of dist-ahead 2.5 is incompatible ({reason}" in shown


def test_reading_levels_imports_no_package_around_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "heavy_package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "heavy_package" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "plugin.py").write_text("supports = (3, 4)\n" + RELAY)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    declaration = read_declaration("heavy_package.inner.plugin")
    assert declaration.hooks == ("omni_relays",)
    assert declaration.supports is not None
    assert declaration.supports["omni_relays"] == (3, 4)
    assert "heavy_package" not in sys.modules


def test_a_duplicate_name_fails_who_asks_for_it_and_names_both(install) -> None:  # type: ignore[no-untyped-def]
    registry = install(one=relay("same"), two=relay("same"), three=relay("fine"))
    with pytest.raises(PluginError, match=r"dist-one.*dist-two"):
        registry.get("omni_relays", "same")
    assert registry.get("omni_relays", "fine")
    assert len(registry.duplicates()) == 1


def test_an_unknown_name_gets_the_nearest(install) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PluginError, match="did you mean 'mine'"):
        install(good=relay("mine")).get("omni_relays", "mime")


@pytest.mark.parametrize(
    ("variable", "value", "loaded"),
    [
        ("OMNI_PLUGINS", "one", {"one"}),
        ("OMNI_PLUGINS", "t*", {"two"}),
        ("OMNI_PLUGINS", "", set()),
        ("OMNI_DISABLE_PLUGINS", "one, nobody", {"two"}),
        ("OMNI_DISABLE_PLUGINS", "*", set()),
    ],
)
def test_plugins_are_allowed_and_denied_by_environment(
    install,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    loaded: set[str],  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setenv(variable, value)
    registry = install(one=relay("a"), two=relay("b"))
    assert {record.name for record in registry.records if record.status is PluginStatus.LOADED} == loaded


def test_probes_answer_and_their_failures_are_reasons(install) -> None:  # type: ignore[no-untyped-def]
    source = HEADER + (
        "def no():\n    return 'no such device'\ndef bad():\n    raise OSError('probe broke')\n"
        "@hookimpl\ndef omni_relays():\n    return [Component('a', 'json:loads', 's'), Component('b', 'json:loads', 's', probe=no),"
        " Component('c', 'json:loads', 's', probe=bad), Component('d', 'json:loads', 's', requires=('no_module_x',)),"
        " Component('e', 'no_module_y:z', 's')]\n"
    )
    problems = {component.name: problem for _, component, _, problem in install(p=source).check()}
    assert problems["a"] is None
    assert problems["b"] == "no such device"
    assert "probe broke" in (problems["c"] or "")
    assert "no_module_x" in (problems["d"] or "")
    assert "no_module_y" in (problems["e"] or "")


def test_what_works_with_a_remark_is_printed_as_working(install, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    registry = install(
        p=HEADER
        + "from omni_core.hookspecs import Remark\ndef slowly():\n    return Remark('no fast device')\n"
        + "@hookimpl\ndef omni_relays():\n    return [Component('a', 'json:loads', 's', probe=slowly)]\n"
    )
    monkeypatch.setattr("omni_core.cli.plugins.load_plugins", lambda: registry)
    result = CliRunner().invoke(check, catch_exceptions=False)
    assert result.output == "ok  relay a (dist-p): no fast device\n"
    assert result.exit_code == 0


def test_every_hook_is_documented_with_an_example() -> None:
    for name, function in hooks().items():
        assert "Example::" in (function.__doc__ or ""), name
        assert f"def {name}():" in (function.__doc__ or ""), name
    assert set(HOOKS) == set(API_LEVELS) == set(hooks())


LIGHT = """
import sys
from omni_core.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
heavy = [name for name in ("torch", "transformers", "numpy", "msgpack") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["plugins", "list"], ["pipelines"], ["config", "show", "qwen3-omni", "--model", "{folder}"]],
)
def test_light_commands_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    filled = [argument.format(folder=tmp_path) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, *filled], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_plugin_modules_import_quickly_and_without_torch() -> None:
    code = (
        "import sys, time, omni_core.hookspecs\nstart = time.perf_counter()\n"
        "import omni_qwen3.plugin, omni_fish_s2.plugin, omni_engine.plugin, omni_kernels.plugin, omni_relay_shm.plugin\n"
        "print(time.perf_counter() - start)\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        for _ in range(3)
    ]
    assert min(float(run.stdout) for run in runs) < 3 * 0.02


def test_components_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Component("a", "b:c", "d").name = "x"  # type: ignore[misc]
