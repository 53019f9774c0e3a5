"""Every check of the workspace. Sessions build wheels first and install those: what is tested is what a user gets."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "docs", "bare", "tests"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
CONSTRAINTS = str(ROOT / "constraints.txt")
DISTRIBUTIONS = {
    "omni-core": "omni_core",
    "omni-relay-shm": "plugins/omni_relay_shm",
    "omni-relay-nixl": "plugins/omni_relay_nixl",
    "omni-engine": "plugins/omni_engine",
    "omni-qwen3": "omni_qwen3",
}
SOURCES = [f"{folder}/src" for folder in DISTRIBUTIONS.values()]
TEST_TOOLS = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "psutil", "opentelemetry-sdk"]
# Only the reference implementation sees it, in a process of its own: its video processor needs it, nothing of ours may.
TORCHVISION = "torchvision==0.28.0"
# The build that runs without CUDA as well; `omni-relay-nixl[cu12]` brings it.
NIXL = "nixl-cu12"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def wheels(*names: str) -> list[str]:
    """The built wheel of each named distribution."""
    found = []
    for name in names:
        (wheel,) = DIST.glob(f"{name.replace('-', '_')}-*.whl")
        found.append(str(wheel))
    return found


def install_wheels(session: nox.Session, *names: str, extra: tuple[str, ...] = ()) -> None:
    """Install our wheels from ``dist/``, freshly even where the version did not change, and everything else from the index."""
    session.install("-c", CONSTRAINTS, "--find-links", str(DIST), *wheels(*names), *extra)
    session.install("--no-deps", "--force-reinstall", *wheels(*names))


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel of every distribution into dist/."""
    session.install("-c", CONSTRAINTS, "build", "hatchling")
    shutil.rmtree(DIST, ignore_errors=True)
    for folder in DISTRIBUTIONS.values():
        session.run("python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(DIST), str(ROOT / folder))


@nox.session(requires=["build"])
def tests(session: nox.Session) -> None:
    """The whole test suite against the installed wheels. Arguments go to pytest: nox -s tests -- tests/omni_engine."""
    install_wheels(session, *DISTRIBUTIONS, extra=(*TEST_TOOLS, NIXL))
    session.run("python", "-m", "pip", "check")
    oracle = Path(session.virtualenv.location) / "oracle"
    session.run("python", "-m", "pip", "install", "-q", "--no-deps", "--target", str(oracle), TORCHVISION, silent=True)
    environment = {**ONE_THREAD, "OMNI_ORACLE_PACKAGES": str(oracle)}
    arguments = session.posargs or ["tests", "--ignore=tests/packaging/bare", "--soak-seconds", "60"]
    session.run("python", "-m", "pytest", *arguments, env=environment)


@nox.session(requires=["build"])
def soak(session: nox.Session) -> None:
    """Random load with random kills, stops and aborts; with the slow fault tests. 60 s, or so many: nox -s soak -- 600."""
    install_wheels(session, *DISTRIBUTIONS, extra=tuple(TEST_TOOLS))
    seconds = session.posargs[0] if session.posargs else "60"
    limit = str(int(float(seconds)) + 300)
    arguments = ["tests/faults", "-k", "soak or most_of_a_minute", "--slow", "--soak-seconds", seconds, "-s"]
    session.run("python", "-m", "pytest", *arguments, "--timeout", limit, env=ONE_THREAD)


@nox.session(requires=["build"])
def bare(session: nox.Session) -> None:
    """omni-core alone: torch is not even installed, no plugin is there, and plain functions still make a pipeline."""
    install_wheels(session, "omni-core", extra=("pytest", "pytest-asyncio", "pytest-timeout"))
    session.run("omni", "--help", silent=True)
    session.run("omni", "plugins", "list")
    session.run("python", "-m", "pytest", "tests/packaging/bare", env=ONE_THREAD)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: style and formatting of the whole tree."""
    session.install("-c", CONSTRAINTS, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(requires=["build"])
def types(session: nox.Session) -> None:
    """mypy --strict over every distribution's source."""
    install_wheels(session, *DISTRIBUTIONS, extra=("mypy", "opentelemetry-api", "pytest"))
    session.run("python", "-m", "mypy", *SOURCES)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site in build/site; a warning is an error. That its pages are current is a test's business."""
    session.install("-c", CONSTRAINTS, "mkdocs-material")
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(requires=["build"])
def demo(session: nox.Session) -> None:
    """The main job: a Qwen3-Omni checkpoint answers with text and speech. Arguments replace those of `omni run`."""
    install_wheels(session, *DISTRIBUTIONS)
    arguments = session.posargs or ["qwen3-omni", "--text", "Say hello.", "--seed", "1", "--out", "reply.wav"]
    session.run("omni", "run", *arguments)
