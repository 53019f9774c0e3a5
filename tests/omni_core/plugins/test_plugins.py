"""Plugins: found by entry point, isolated when broken, refused when incompatible, and named in every error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from attrs import evolve
from click.testing import CliRunner

from omni_cli.plugins import check
from omni_core.errors import PluginError
from omni_core.hookspecs import HOOKS, Component
from omni_core.plugins.discovery import PluginRecord, PluginStatus, discover
from omni_core.plugins.levels import Levels
from omni_core.plugins.registry import PluginRegistry
from omni_core.references import reference_problem

HEADER = "from omni_core.hookspecs import Component, PipelineComponent, hookimpl\n"


def relay(name: str) -> str:
    return HEADER + f"@hookimpl\ndef omni_relays():\n    return [Component({name!r}, 'some.where:Relay', 'a relay')]\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Install plugins given as ``name -> source`` into a folder on the path; a registry of these alone.

    ``levels`` are the API levels that all of their entry points declare.
    """

    def make(levels: str = "", **sources: str) -> PluginRegistry:
        for name, source in sources.items():
            module = f"{name}_{abs(hash(str(tmp_path)))}"
            (tmp_path / f"{module}.py").write_text(source)
            info = tmp_path / f"{name}-2.5.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: 2.5\n")
            (info / "entry_points.txt").write_text(f"[omni]\n{name} = {module}{levels}\n")
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
        ("x = 1\n\ndef broken(:\n", PluginStatus.BROKEN, "py, line 3)"),
        (HEADER + "@hookimpl\ndef omni_relays():\n    raise ValueError('inside')\n", PluginStatus.BROKEN, "inside"),
        (HEADER + "@hookimpl\ndef omni_relays():\n    return ['x']\n", PluginStatus.BROKEN, "list of Component"),
        ("raise KeyboardInterrupt\n", PluginStatus.BROKEN, "KeyboardInterrupt"),
        (HEADER + "@hookimpl\ndef omni_relays():\n    raise SystemExit(7)\n", PluginStatus.BROKEN, "SystemExit: 7"),
        (
            HEADER + "@hookimpl\ndef omni_relays():\n    return 42\n",
            PluginStatus.BROKEN,
            "omni_relays returned 42; it must",
        ),
        (relay("x").replace("[Comp", "Comp").replace(")]", ")"), PluginStatus.BROKEN, "omni_relays returned Component"),
        (relay("x").replace("'x'", "7"), PluginStatus.BROKEN, "Component 7: name must be a string, is 7"),
        (relay("x").replace("'some.where:Relay'", "object()"), PluginStatus.BROKEN, "Component 'x': target must be"),
        (
            relay("x").replace("'some.where:Relay'", "'Relay'"),
            PluginStatus.BROKEN,
            "Component 'x': target: 'Relay' is not a reference",
        ),
        (
            relay("x").replace("'a relay'", "None"),
            PluginStatus.BROKEN,
            "Component 'x': summary must be a string, is None",
        ),
        (
            relay("x").replace("'a relay'", "'a relay', 'torch'"),
            PluginStatus.BROKEN,
            "requires must be a tuple of strings",
        ),
        (
            relay("x").replace("omni_relays", "omni_pipelines"),
            PluginStatus.BROKEN,
            "it must return a list of PipelineComponent",
        ),
        (
            relay("x").replace("omni_relays", "omni_relay"),
            PluginStatus.BROKEN,
            "'omni_relay'; did you mean 'omni_relays'?",
        ),
    ],
)
def test_a_broken_plugin_does_not_affect_others(install, source: str, expected: PluginStatus, reason: str) -> None:  # type: ignore[no-untyped-def]
    registry = install(bad=source, good=relay("mine"))
    record = next(record for record in registry.records if record.name == "bad")
    assert record.status is expected
    assert reason in record.reason
    assert record.traceback
    assert (record.distribution, record.version) == ("dist-bad", "2.5")
    assert registry.get("omni_relays", "mine")
    with pytest.raises(PluginError, match=r"dist-bad 2\.5.*omni plugins show bad"):
        registry.get("omni_relays", "missing")


@pytest.mark.parametrize(
    ("levels", "expected", "reason"),
    [
        (" [relays-1]", PluginStatus.LOADED, ""),
        (" [relays-1, relays-2]", PluginStatus.LOADED, ""),
        (" [relays_1]", PluginStatus.LOADED, ""),
        ("", PluginStatus.LOADED, ""),
        (" [commands-1]", PluginStatus.LOADED, ""),  # its relays are not declared: taken as they are
        (
            " [relays-2,relays-3]",
            PluginStatus.INCOMPATIBLE,
            "API level 2 or 3 of relays.*level 1 of relays; upgrade omni-core",
        ),
        (" [relays-0]", PluginStatus.INCOMPATIBLE, r"API level 0 of relays.*upgrade dist-bad \(2.5 is installed"),
        (" [relays-2, commands-1]", PluginStatus.INCOMPATIBLE, "2 of relays, this core.*upgrade omni-core"),
        (" [relays-2, commands-0]", PluginStatus.INCOMPATIBLE, "upgrade dist-bad.* and omni-core"),
        (" [relay-1]", PluginStatus.BROKEN, r"\[relay-1\].*no hook for relay; did you mean 'relays'\?"),
        (" [relays]", PluginStatus.BROKEN, r"\[relays\].*such as \[relays-1\]"),
    ],
)
def test_levels_are_read_from_the_entry_point(install, levels: str, expected: PluginStatus, reason: str) -> None:  # type: ignore[no-untyped-def]
    loads = expected is PluginStatus.LOADED
    (record,) = install(levels, bad=relay("mine") + ("" if loads else "raise RuntimeError('imported')\n")).records
    assert record.status is expected, record.reason
    assert re.search(reason, record.reason), record.reason
    assert bool(record.traceback) == (expected is PluginStatus.BROKEN)


@pytest.mark.parametrize(
    ("source", "levels", "warning"),
    [
        (relay("x"), "", "does not declare API levels; write: w_"),
        (relay("x"), "", r"\[relays-1\]$"),
        (
            relay("x").replace("@hookimpl\n", ""),
            " [relays-1]",
            "omni_relays is not marked with @hookimpl, so it is not called",
        ),
        (relay("x"), " [relays-1, commands-1]", "declares commands, and its module has no hook omni_commands"),
        ("x = 1\n", "", "it provides nothing"),
        (
            "import time\ntime.sleep(0.15)\n" + relay("x"),
            " [relays-1]",
            r"its import takes 0\.\d s, for which every command waits",
        ),
    ],
)
def test_mistakes_of_a_plugin_that_loads_are_warnings(install, source: str, levels: str, warning: str) -> None:  # type: ignore[no-untyped-def]
    (record,) = install(levels, w=source).records
    assert record.status is PluginStatus.LOADED
    assert any(re.search(warning, line) for line in record.warnings), record.warnings


def test_a_plugin_without_mistakes_has_no_warnings(install) -> None:  # type: ignore[no-untyped-def]
    (record,) = install(" [relays-1]", good=relay("x")).records
    assert record.warnings == []
    assert 0 < record.seconds < 5


def test_output_of_plugins_goes_to_standard_error(install, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    printing = (
        "print('hello from the import')\n" + HEADER + "@hookimpl\ndef omni_relays():\n    print('and the hook')\n"
    )
    install(chatty=printing)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "hello from the import\nand the hook\n"


def test_ctrl_c_during_a_slow_import_is_not_a_plugin_failure(install) -> None:  # type: ignore[no-untyped-def]
    pressing = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n"
    with pytest.raises(KeyboardInterrupt):
        install(slow=pressing)


def test_levels_of_one_kind_do_not_affect_another(install, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(HOOKS, "omni_relays", evolve(HOOKS["omni_relays"], level=2))
    assert status(install(" [relays-1]", old=relay("mine")), "old") is PluginStatus.INCOMPATIBLE
    assert status(install(" [relays-1, relays-2]", both=relay("y")), "both") is PluginStatus.LOADED
    command = relay("x").replace("omni_relays", "omni_commands")
    assert status(install(" [commands-1]", tool=command), "tool") is PluginStatus.LOADED


@pytest.fixture
def omni(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Run the command line where the plugins of ``install`` are; exit code, and all that it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "omni_core.cli", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_command_line_shows_levels_and_names_plugins_that_may_be_missing(install, omni) -> None:  # type: ignore[no-untyped-def]
    install(" [commands-2, commands-3]", ahead="raise RuntimeError('imported')\n")
    install(" [relays-1]", fine=relay("mine"))
    reason = "it is made for API level 2 or 3 of commands, this core offers API level 1 of commands; upgrade omni-core (0.1.0"
    code, shown = omni("plugins", "list")
    assert (code, reason in shown) == (0, True), shown
    assert re.search(r"fine +loaded +dist-fine 2.5 \(API level 1 of relays\)", shown), shown
    code, shown = omni("plugins", "show", "ahead")
    assert (code, reason in shown, "made for:     API level 2 or 3 of commands" in shown) == (0, True, True), shown
    code, shown = omni("plugins", "show", "fine")
    assert "omni_relays (this core offers API level 1)" in shown
    code, shown = omni("plugins", "check", "ahead")
    assert (code, reason in shown, "mine" in shown) == (1, True, False), shown
    code, shown = omni("greet")
    assert code == 2
    assert "no such command 'greet'" in shown
    assert f"plugin 'ahead' of dist-ahead 2.5 is incompatible ({reason}" in shown


COMPONENTS = HEADER + "def probe():\n    {probe}\n@hookimpl\ndef omni_relays():\n    return [{component}]\n"


@pytest.mark.parametrize(
    ("component", "probe", "code", "words"),
    [
        ("Component('a', 'json:loads', 's', probe=probe)", "return None", 0, "ok  relay a"),
        ("Component('a', 'json:loads', 's', probe=probe)", "return 'no device'", 0, "no  relay a (dist-p): no device"),
        ("Component('a', 'json:loads', 's', ('no_such_module',))", "", 0, "module 'no_such_module' is not installed"),
        ("Component('a', 'json:loads', 's', probe=probe)", "raise OSError(5)", 1, "its probe failed: OSError: 5"),
        ("Component('a', 'json:loads', 's', probe=probe)", "raise SystemExit(5)", 1, "its probe failed: SystemExit: 5"),
        (
            "Component('a', 'json:loads', 's', probe=probe)",
            "raise KeyboardInterrupt",
            1,
            "its probe failed: KeyboardInterrupt",
        ),
        ("Component('a', 'json:loads', 's', probe=probe)", "return 42", 1, "its probe returned 42"),
        (
            "Component('a', 'no_such.place:x', 's')",
            "",
            1,
            "its target 'no_such.place:x': module 'no_such.place' does not exist",
        ),
        ("Component('a', 'json:laods', 's')", "", 1, "module 'json' has no attribute 'laods'; did you mean 'loads'?"),
        ("Component('a', 'json:loads', 's', conformance='json:Suite')", "", 1, "its conformance 'json:Suite'"),
        ("Component('a', 'json:loads', 's', conformance='no_suites.here:Suite')", "", 0, "ok  relay a"),
    ],
)
def test_check_exits_with_1_if_a_plugin_is_at_fault(
    install,
    monkeypatch: pytest.MonkeyPatch,
    component: str,
    probe: str,
    code: int,
    words: str,  # type: ignore[no-untyped-def]
) -> None:
    registry = install(" [relays-1]", p=COMPONENTS.format(component=component, probe=probe or "pass"))
    monkeypatch.setattr("omni_cli.plugins.load_plugins", lambda: registry)
    result = CliRunner().invoke(check, ["p"])
    assert words in result.output
    assert result.exit_code == code


@pytest.mark.parametrize("probe", ["raise KeyboardInterrupt", "return 42"])
def test_the_doctor_survives_a_plugin_at_fault(install, omni, probe: str) -> None:  # type: ignore[no-untyped-def]
    install(" [relays-1]", p=COMPONENTS.format(component="Component('a', 'json:loads', 's', probe=probe)", probe=probe))
    _, shown = omni("doctor")
    assert "its probe" in shown
    assert "Traceback" not in shown


def test_targets_are_looked_for_without_an_import(install, omni) -> None:  # type: ignore[no-untyped-def]
    bound = (
        "raise RuntimeError('imported')\nif True:\n    class Relay: ...\nfor each in (): pass\n(one, [two]) = 1, [2]\n"
    )
    module = (install(" [relays-1]", heavy=bound).records[0]).module
    for name in ("Relay", "each", "one", "two", "Relay.inner"):
        assert reference_problem(f"{module}:{name}") is None
    assert reference_problem(f"{module}:Rely") == f"module '{module}' has no attribute 'Rely'; did you mean 'Relay'?"
    assert reference_problem("os:anything") is None, "a star import may define any name"
    assert reference_problem("no_such_package.inner:x") == "module 'no_such_package.inner' does not exist"
    assert reference_problem("itertools:count") is None, "a module without source may define any name"


def test_a_command_that_two_plugins_provide_is_told_by_check(install, omni) -> None:  # type: ignore[no-untyped-def]
    command = relay("run").replace("omni_relays", "omni_commands").replace("some.where:Relay", "json:loads")
    install(" [commands-1]", mine=command)
    for arguments, code in ((["plugins", "check", "mine"], 1), (["plugins", "list"], 0)):
        found, shown = omni(*arguments)
        assert found == code
        assert (
            "provided twice, unusable until one is uninstalled or disabled: command 'run': 'cli' of omni-commands"
            in shown
        )


PIPELINE = """
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.hookspecs import Component, PipelineComponent, hookimpl

@hookimpl
def omni_relays():
    return [Component("mine", "some.where:Relay", "a relay"), Component("idle", "some.where:Other", "another")]

@hookimpl
def omni_pipelines():
    names = {"named": "mine", "dotted": "some.where.Relay", "failing": None}
    return [PipelineComponent(each, f"{__name__}:{each}", "a pipeline") for each in names]

def named(model_path):
    stages = [StageConfig(name="only", factory="m:f", process="only", terminal=True)]
    return PipelineConfig(model_path=model_path, stages=stages, relay_backend="mine")

def dotted(model_path):
    from attrs import evolve
    return evolve(named(model_path), relay_backend="some.where.Relay")

def failing(model_path):
    raise SystemExit(3)
"""


def test_show_says_which_stages_use_a_component(install, omni) -> None:  # type: ignore[no-untyped-def]
    install(" [relays-1, pipelines-1]", p=PIPELINE)
    code, shown = omni("plugins", "show", "p")
    assert code == 0
    lines = [line.strip() for line in shown.splitlines()]
    assert (
        lines[lines.index("mine  a relay  [some.where:Relay]") + 1] == "used by named: all stages, dotted: all stages"
    )
    assert "used by" not in lines[lines.index("idle  another  [some.where:Other]") + 1]
    assert "It is not known what this pipeline uses, failing: SystemExit: 3" in lines
    assert "Traceback" not in shown


def test_a_command_that_cannot_be_imported_names_its_plugin(install, omni) -> None:  # type: ignore[no-untyped-def]
    install(" [commands-1]", mine=relay("hello").replace("omni_relays", "omni_commands"))
    code, shown = omni("hello")
    assert code == 1
    assert "the command 'hello' of plugin 'mine' of dist-mine 2.5 cannot be imported from some.where:Relay" in shown


def test_using_a_duplicate_name_is_an_error_that_names_both(install) -> None:  # type: ignore[no-untyped-def]
    registry = install(one=relay("same"), two=relay("same"), three=relay("fine"))
    with pytest.raises(PluginError, match=r"dist-one.*dist-two"):
        registry.get("omni_relays", "same")
    assert registry.get("omni_relays", "fine")
    assert len(registry.duplicates()) == 1


def test_an_unknown_name_suggests_the_nearest(install) -> None:  # type: ignore[no-untyped-def]
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


def test_a_probe_warning_counts_as_working(install, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    registry = install(
        " [relays-1]",
        p=HEADER
        + "from omni_core.hookspecs import ProbeWarning\ndef slowly():\n    return ProbeWarning('no fast device')\n"
        + "@hookimpl\ndef omni_relays():\n    return [Component('a', 'json:loads', 's', probe=slowly)]\n",
    )
    monkeypatch.setattr("omni_cli.plugins.load_plugins", lambda: registry)
    result = CliRunner().invoke(check, catch_exceptions=False)
    assert result.output == "ok  relay a (dist-p): no fast device\n"
    assert result.exit_code == 0


def test_every_hook_is_documented_with_an_example() -> None:
    for name, hook in HOOKS.items():
        assert "Example::" in (hook.specification.__doc__ or ""), name
        assert f"def {name}():" in (hook.specification.__doc__ or ""), name
        assert hook.specification() == []
    assert HOOKS["omni_model_runners"].plural == "model-runners"


LIGHT = """
import sys
from omni_core.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
heavy = [name for name in ("torch", "transformers", "numpy") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["plugins", "list"],
        ["pipelines"],
        ["config", "show", "qwen3-omni", "--model", "{folder}"],
        ["config", "show", "{folder}/deploy.yaml", "--set", "*.factory_args.max_running=2"],
        ["config", "explain", "{folder}/deploy.yaml", "thinker.factory_args.max_running"],
    ],
)
def test_light_commands_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "deploy.yaml").write_text(
        f"base: qwen3-omni/cpu\nmodel_path: {tmp_path}\nplatforms: {{cpu: {{retries: 1}}}}\n"
    )
    filled = [argument.format(folder=tmp_path) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, *filled], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_components_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Component("a", "b:c", "d").name = "x"  # type: ignore[misc]


def test_a_module_is_found_in_a_package_whose_places_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers gives itself such a spec once it is imported; Python's own finder ignores what is no text."""
    (tmp_path / "placed").mkdir()
    (tmp_path / "placed" / "inner.py").write_text("value = 1\n")
    package = ModuleType("placed")
    package.__spec__ = ModuleSpec("placed", None, is_package=True)
    package.__spec__.submodule_search_locations = [tmp_path / "placed"]  # type: ignore[list-item]
    monkeypatch.setitem(sys.modules, "placed", package)
    assert reference_problem("placed.inner:value") is None
    assert reference_problem("placed.other:value") == "module 'placed.other' does not exist"


def test_a_broken_plugin_of_other_kinds_is_no_suspect() -> None:
    levels: list[Levels] = [{}, {"omni_relays": (1,)}, {"omni_pipelines": (1,)}]
    records = [
        PluginRecord(name, f"dist-{name}", "1", "m", PluginStatus.BROKEN, "it is", levels=each)
        for name, each in zip(("silent", "relay", "model"), levels, strict=True)
    ]
    with pytest.raises(PluginError) as caught:
        PluginRegistry(records).get("omni_pipelines", "absent")
    assert re.findall(r"omni plugins show (\w+)", str(caught.value)) == ["silent", "model"]
