"""Distributions import of omni-core and omni-torch only public modules; parts of the runtime also ``omni_core.runtime_api``."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from inspect import isfunction
from itertools import pairwise
from pathlib import Path
from types import GenericAlias, ModuleType
from typing import cast

import pytest

import omni_core.api
import omni_core.runtime_api
import omni_torch.api
from omni_core.plugins.levels import declared_levels
from omni_testing.authoring.kinds import TORCH_LEVEL

ROOT = Path(__file__).parents[2]
API = (omni_core.api, omni_torch.api)
INSIDE = {"omni_core", "omni_torch", "omni_cli", "omni_launchers", "omni_planner", "omni_serve", "omni_testing"}
"""The runtime and its parts. Every other distribution is written as a stranger's."""

SOURCES = {
    path.name: path / "src" for path in [*ROOT.glob("omni_*"), *ROOT.glob("plugins/omni_*"), *ROOT.glob("examples/*")]
}
TEMPLATES = ROOT / "plugins/omni_testing/src/omni_testing/authoring/templates"
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("examples/*/*.md")]


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports of the two packages, as ``module:name``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("omni_core", "omni_torch"):
            yield from (f"{node.module}:{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if re.match(r"omni_(core|torch)\b", alias.name))


def is_public(name: str) -> bool:
    """A name of an api module, the module itself, or the Python client: ``import omni_core as omni``."""
    module, _, attribute = name.partition(":")
    if module == "omni_core":
        return attribute in ("", "api", *sys.modules["omni_core"].__all__)
    return name == "omni_torch:api" or any(module == each.__name__ and attribute in each.__all__ for each in API)


def written() -> Iterator[tuple[str, str]]:
    """Yield the sources that must import public modules only, with their places."""
    for path in (path for name, source in SOURCES.items() if name not in INSIDE for path in source.rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()
    for path in ROOT.glob("examples/*/tests/*.py"):
        yield str(path.relative_to(ROOT)), path.read_text()
    for path in TEMPLATES.rglob("*.py.in"):
        yield str(path.relative_to(ROOT)), path.read_text().replace("$", "")
    for page in PAGES:
        for block in re.findall(
            r"^[ >]*```py(?:thon)?\b[^\n]*\n(.*?)^[ >]*```", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            yield str(page.relative_to(ROOT)), block


def used_by_the_runtime() -> Iterator[tuple[str, str]]:
    """Yield what the runtime's other distributions import of the core, with its place."""
    for path in (path for name in INSIDE - {"omni_core"} for path in SOURCES[name].rglob("*.py")):
        found = [name for name in imported(ast.parse(path.read_text())) if name.startswith("omni_core")]
        yield from ((str(path.relative_to(ROOT)), name) for name in found)


def statements(source: str) -> ast.Module:
    """Parse a source; of a template with holes, the imports."""
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        return cast(ast.Module, compile(source, "source", "exec", flags))
    except SyntaxError:
        found = re.findall(r"^(?:from [\w.]+ )?import (?:\([^)]*\)|.*)$", source, re.MULTILINE)
        return ast.parse("\n".join(found))


def test_strangers_import_public_names_only() -> None:
    found = [(place, name) for place, source in written() for name in imported(statements(source))]
    assert len({place for place, _ in found}) > 200
    wrong = [f"{place} imports {name}" for place, name in found if not is_public(name)]
    assert not wrong, "\n".join(wrong)


def test_parts_of_the_runtime_import_the_two_api_modules_only() -> None:
    found = list(used_by_the_runtime())
    assert len({place for place, _ in found}) > 200
    allowed = {"omni_core:__version__", *(f"omni_core.runtime_api:{name}" for name in omni_core.runtime_api.__all__)}
    wrong = [f"{place} imports {name}" for place, name in found if name not in allowed and not is_public(name)]
    assert not wrong, "\n".join(wrong)


def test_every_name_for_the_runtime_is_used_and_is_not_public() -> None:
    names = set(omni_core.runtime_api.__all__)
    unused = names - {name.partition(":")[2] for _, name in used_by_the_runtime()}
    assert not unused, f"nothing else uses {sorted(unused)}: take it out"
    assert not names & {*omni_core.api.__all__, *sys.modules["omni_core"].__all__}


def test_the_packages_themselves_import_no_api_module() -> None:
    """So an api module may be imported first: nothing that it loads asks it for a name."""
    for name in ("omni_core", "omni_torch"):
        for path in (SOURCES[name] / name).rglob("*.py"):
            names = imported(ast.parse(path.read_text()))
            own = [each for each in names if re.match(rf"{name}[.:](runtime_)?api\b", each)]
            assert not own, f"{path.relative_to(ROOT)} imports {own}"


@pytest.mark.parametrize("api", [*API, omni_core.runtime_api], ids=lambda api: api.__name__)
def test_the_lists_of_an_api_module_agree(api: ModuleType) -> None:
    tree = ast.parse(Path(api.__file__ or "").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    checked = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert checked == {name: home for home, names in vars(api)["_HOMES"].items() for name in names.split()}
    assert sorted(checked) == sorted(api.__all__), "each name is listed once"


def documented_constants(module: str) -> Iterator[str]:
    """Yield the names that a module, or one of a package, assigns with a docstring below the assignment."""
    file = Path(importlib.import_module(module).__file__ or "")
    for path in file.parent.glob("*.py") if file.name == "__init__.py" else [file]:
        for node, following in pairwise(ast.parse(path.read_text()).body):
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                stored = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
                yield from (each.id for each in stored if isinstance(each.ctx, ast.Store))


def is_documented(api: ModuleType, home: str, name: str) -> bool:
    """A class, a function or an object has a docstring of its own; a constant one below its assignment."""
    value = getattr(api, name)
    own = value.__doc__ if isfunction(value) else getattr(value, "__dict__", {}).get("__doc__")
    if isinstance(value, GenericAlias):  # it shows the docstring of the class that it is of
        own = None
    return bool(own) or name in documented_constants(home)


@pytest.mark.parametrize("api", API, ids=lambda api: api.__name__)
def test_every_public_name_is_documented(api: ModuleType) -> None:
    homes = {name: home for home, names in vars(api)["_HOMES"].items() for name in names.split()}
    assert not [name for name, home in homes.items() if not is_documented(api, home, name)]


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(
        AttributeError, match=r"'omni_core.api' has no attribute 'PipelineConfg'; did you mean 'PipelineConfig'"
    ):
        omni_core.api.PipelineConfg  # type: ignore[attr-defined]  # noqa: B018


def test_an_import_of_a_name_looks_for_no_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python asks an api module for ``__path__`` each time: half a millisecond in every module that imports from it."""
    asked: list[str] = []
    monkeypatch.setattr("omni_core.references.did_you_mean", lambda name, known: asked.append(name))
    exec("from omni_core.api import PipelineConfig; from omni_core.runtime_api import Override")
    assert not asked


LOADED = "import json, sys\nbefore = set(sys.modules)\n{}\nprint(json.dumps(sorted(set(sys.modules) - before)))"


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(code)], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout))


def test_an_api_module_loads_less_than_what_plugins_import() -> None:
    usual = loaded("import omni_core.hookspecs, omni_core.config.schema")
    bare = loaded("import omni_core.api, omni_torch.api")
    assert bare - usual <= {"omni_core.api", "omni_core.references", "omni_torch", "omni_torch.api"} | loaded(
        "import omni_core.references"
    )
    named = loaded(
        "from omni_core.api import Component, PipelineConfig, hookimpl; from omni_torch.api import config_folder, written_once"
    )
    assert not named & {"torch", "transformers", "numpy", "omni_core.scheduling", "omni_core.model_runner"}


def test_plugins_that_import_the_interface_for_pytorch_declare_its_level() -> None:
    def entry_points(folder: Path) -> dict[str, dict[str, str]]:
        return tomllib.loads((folder / "pyproject.toml").read_text())["project"].get("entry-points", {})  # type: ignore[no-any-return]

    offered = declared_levels(entry_points(SOURCES["omni_torch"].parent)["omni.apis"]["torch"])["omni_torch"]
    assert declared_levels(f"[{TORCH_LEVEL}]")["omni_torch"] == offered
    for name, source in SOURCES.items():
        users = any("omni_torch.api" in path.read_text() for path in source.rglob("*.py"))
        for value in entry_points(source.parent).get("omni", {}).values() if name not in INSIDE else ():
            assert (offered if users else ()) == declared_levels(value).get("omni_torch", ()), name
