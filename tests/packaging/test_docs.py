"""The documentation matches the code: examples run, generated pages are current, and named things exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from attrs import frozen

from omni_cli.deploy.files import read_deploy
from omni_cli.deploy.override_layers import apply
from omni_core.config.loading import read_yaml, structure
from omni_core.config.placement import plan
from omni_core.config.validation import validate
from omni_core.plugins import PluginRegistry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "plugins.md"
OURS = {
    "omni_core",
    "omni_torch",
    "omni_testing",
    "omni_qwen3",
    "omni_relay_shm",
    "omni_relay_nixl",
}
SOURCES = [path for folder in ("omni_core", "omni_qwen3", "plugins") for path in (ROOT / folder).rglob("src/**/*.py")]


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/generate.py as a module."""
    monkeypatch.syspath_prepend(DOCS)
    spec = importlib.util.spec_from_file_location("omni_docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(path: Path, language: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def test_the_documented_plugin_installs_and_answers(tmp_path: Path) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    files = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["pyproject.toml", "omni_echo/plugin.py", "omni_echo/pipeline.py"]
    (project / "omni_echo").mkdir(parents=True)
    for name, code in files:
        (project / name).write_text(code)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "install", "-q", *options, "--target", str(site), str(project)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}

    def omni(*arguments: str) -> str:
        command = [sys.executable, "-m", "omni_core.cli", *arguments]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    assert omni("run", "echo", "--text", "hello there") == "hello there\n"
    assert omni("plugins", "check", "echo") == "ok  pipeline echo (omni-echo)\n"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_to_files_of_the_repository_work(name: str) -> None:
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(r"""(?:src|srcset)="([^"]+)\"""", text)
    assert links
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_the_readme_of_a_distribution_stands_alone() -> None:
    for project in [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]:
        text = project.with_name("README.md").read_text()
        name = re.findall(r'^name = "(.*)"', project.read_text(), re.MULTILINE)[0]
        assert text.startswith(f"# {name}\n"), project
        assert "pip install" in text, project
        assert not re.findall(r"\]\((?!https?:|#)", text), f"{project}: an index has no other files to link to"


PROJECTS = {
    project["name"]: (folder, [re.split(r"[^\w-]", each)[0] for each in project["dependencies"]])
    for folder in (
        path.parent for path in [*ROOT.glob("omni_*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    )
    for project in [tomllib.loads((folder / "pyproject.toml").read_text())["project"]]
}


def folders(line: str) -> set[Path]:
    """The folders that a line of pip installs, as bash reads it."""
    spread = re.sub(r"(\S+){(\S+)}", lambda each: " ".join(each[1] + name for name in each[2].split(",")), line)
    return {ROOT / name for name in re.findall(r"(?<=[ '])\./([\w/]+)", spread)}


def test_what_a_page_installs_is_here_or_said_to_come_with_the_release() -> None:
    at_first = folders((DOCS / "getting-started.md").read_text())
    named = re.compile(rf"(?<![./\w-])({'|'.join(PROJECTS)})(?![\w.-])")
    for page in (ROOT / "README.md", *DOCS.glob("*.md")):
        text = page.read_text()
        for block in re.finditer(r"^```(?:bash|shell)\n(.*?)^```|^    pip .*$", text, re.DOTALL | re.MULTILINE):
            before = text[: block.start()].rstrip().rpartition("\n")[2]
            for line in re.findall(r"^.*pip install (?!nox).*$", block[0], re.MULTILINE):
                command = line.partition("#")[0]
                if "When released" not in before and "--find-links" not in command:
                    assert not named.findall(command), f"{page}: {line}"
                here = folders(command)
                for folder in here:
                    [needs] = [needs for where, needs in PROJECTS.values() if where == folder]
                    needed = {PROJECTS[name][0] for name in needs if name in PROJECTS}
                    assert needed <= here | at_first, f"{page}: {line}"


def test_the_plugin_in_the_readme_answers(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n# shout.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "shout.py").write_text(code)
    information = tmp_path / "shout-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shout\nVersion: 1.0\n")
    [entry] = re.findall(r"entry point `(shout = .*?)`", (ROOT / "README.md").read_text())
    (information / "entry_points.txt").write_text(f"[omni]\n{entry.replace(chr(34), '')}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "omni_core.cli", "run", "shout", "--text", "hello"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stdout) == (0, "HELLO\n"), answer.stderr


def test_the_reference_is_current() -> None:
    command = [sys.executable, str(DOCS / "generate.py"), "--check"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_stale_reference_is_noticed(
    generate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "REFERENCE", tmp_path / "reference")

    def main(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            generate.main(list(arguments))
        return int(ended.value.code or 0)

    assert main("--check") == 1
    assert main() == 0
    assert main("--check") == 0
    page = tmp_path / "reference" / "config.md"
    page.write_text(page.read_text().replace("`startup_timeout`", "`startup_time`"))
    capsys.readouterr()
    assert main("--check") == 1
    assert capsys.readouterr().out == "reference/config.md: not current; run python docs/generate.py\n"


def test_a_field_without_a_description_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    text = importlib.import_module("generator.text")

    @frozen
    class Settings:
        """Some settings.

        Attributes:
            size: how large, ``None`` for
                any.
        """

        size: int | None = None
        speed: int = 0

    assert text.attribute_texts(Settings) == {"size": "how large, `None` for any."}
    with pytest.raises(ValueError, match="Settings does not describe 'speed'"):
        text.field_table(Settings)


def test_a_contract_shows_how_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    shown = "".join(importlib.import_module("generator.contracts").contract_parts("omni_core.api:PagedAttention"))
    assert "def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None" in shown


def test_no_two_things_of_one_reference_page_have_one_name(generate: ModuleType) -> None:
    for page in (generate.PYTHON, generate.CONTRACTS, generate.CONFORMANCE):
        names = [reference.partition(":")[2] for references in page.values() for reference in references]
        assert sorted(set(names)) == sorted(names)


def test_the_example_config_is_valid_and_its_overlay_applies(tmp_path: Path) -> None:
    files = []
    for number, text in enumerate(blocks(DOCS / "reference" / "config.md", "yaml")):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(text)
    whole, overlay = files
    config = structure(read_yaml(whole))
    validate(config)
    assert {process.group for process in plan(config)} == {"front", "encoder", "writer"}
    changed = apply(config, *read_deploy(overlay, PluginRegistry([])).layers("cpu")).config
    validate(changed)
    assert changed.retries == 0
    assert changed.stage("writer").factory_args == {"max_running": 8}
    relay = changed.stage("writer").relay
    assert relay is not None
    assert (relay.slot_size_mb, relay.credits) == (128, 2)


def variables_read(path: Path) -> Iterator[str]:
    """The environment variables that a module reads by name."""
    text = path.read_text()
    yield from re.findall(r"""environ(?:\.get\(|\.setdefault\(|\[)["'](\w+)["']""", text)
    yield from re.findall(r"""getenv\(["'](\w+)["']""", text)
    yield from re.findall(r"^[A-Z_]+ = \"(OMNI_\w+)\"", text, re.MULTILINE)


def test_every_environment_variable_is_documented(generate: ModuleType) -> None:
    read = {name for path in SOURCES for name in variables_read(path)}
    assert "OMNI_PLUGINS" in read
    assert read <= generate.VARIABLES.keys()
    assert {name for name in generate.VARIABLES if name.startswith("OMNI_")} <= read


def test_python_on_pages_is_valid_and_imports_what_exists() -> None:
    for page in DOCS.rglob("*.md"):
        for block in blocks(page, "python"):
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            for statement in ast.walk(compile(block, str(page), "exec", flags)):
                if isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] in OURS:
                    module = importlib.import_module(statement.module or "")
                    assert not [each.name for each in statement.names if not hasattr(module, each.name)], page


def names_in(path: Path) -> Iterator[str]:
    """Every identifier of a module: definitions, uses, parameters, and string constants that look like one."""
    for node in ast.walk(ast.parse(path.read_text())):
        for attribute in ("name", "id", "attr", "arg", "value"):
            value = getattr(node, attribute, None)
            if isinstance(value, str) and value.isidentifier():
                yield value


def test_names_on_the_page_about_request_flow_exist() -> None:
    source = ROOT / "omni_core" / "src" / "omni_core"
    torch, plugins = ROOT / "plugins/omni_torch/src/omni_torch", ROOT / "plugins/omni_relay_kit/src"
    step = [
        torch / "processes/ranks.py",
        *(path for room in ("loop", "engine", "runners") for path in (torch / room).glob("*.py")),
    ]
    known = {name for path in (*source.rglob("*.py"), *step) for name in names_in(path)} | {
        "client",
        "pipe",
        "omni_core",
    }
    page = re.sub(r"^```.*?^```", "", (DOCS / "how-a-request-flows.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`([^`\n]+)`", page)
    files = [name for name in named if "/" in name or name.endswith(".py")]
    assert len(files) > 10
    assert not [name for name in files if not any((each / name).exists() for each in (source, torch, plugins, ROOT))]
    rest = {name for text in named if text not in files for name in re.findall(r"[A-Za-z_]\w+", text)}
    assert {"Coordinator", "Lanes"} < rest
    assert not rest - known


def test_the_diagrams_name_messages_that_exist() -> None:
    protocol = ROOT / "omni_core" / "src" / "omni_core" / "protocol"
    messages = {name for path in protocol.glob("*messages.py") for name in names_in(path)}
    diagrams = "".join(blocks(DOCS / "how-a-request-flows.md", "mermaid"))
    named = set(re.findall(r"\b[A-Z]\w+(?:Message|Report)\b", diagrams))
    assert {"SubmitMessage", "DataReadyMessage", "PeerDownReport"} <= named
    assert named <= messages
