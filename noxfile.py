"""Every check of the workspace. `nox` alone is what CI runs; `nox -s full` is everything else, in four shards that run by name too."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.version import Version

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["check"]
nox.options.reuse_existing_virtualenvs = True
# Most modules of torch and transformers are never imported: compiling all would take a minute. What is imported is compiled then.
os.environ.setdefault("PIP_COMPILE", "0")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
PROJECTS = sorted([*ROOT.glob("omni_*/pyproject.toml"), *ROOT.glob("plugins/omni_*/pyproject.toml")])
FOLDERS = {tomllib.loads(each.read_text())["project"]["name"]: each.parent for each in PROJECTS}
NAMES = tuple(name for name in FOLDERS if name != "omni-sglang")  # SGLang's requirements conflict with the others'.
EXTRAS = {"commands": "audio", "demo": "image", "media": "heif", "serve": "silero", "torch": "structured"}
EXTRAS = {f"omni-{name}": f"[{extra}]" for name, extra in EXTRAS.items()}
EXAMPLES = [each for each in sorted((ROOT / "examples").iterdir()) if (each / "tests").is_dir()]
# The supported versions of Python that start here. A shim for one that is not installed does not.
PYTHONS = [each for each in ("3.11", "3.12", "3.13") if subprocess.getstatusoutput(f"python{each} -V")[0] == 0]
BUILT = [] if os.environ.get("OMNI_WHEELS") == "built" else ["build"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
CLIENT_TESTS = ROOT / "tests/omni_serve/clients"
CLIENTS = sorted(each.stem for each in CLIENT_TESTS.glob("*.txt"))
REFERENCES = {  # Models, and what their published implementations import.
    "kokoro": ["transformers", "loguru"],
    "qwen3_tts": ["omni-testing", "librosa", "einops"],
}
NIXL, MOONCAKE = "nixl-cu12", "mooncake-transfer-engine-non-cuda"  # The builds that also run without CUDA.
PYTEST = ["pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "psutil"]
TOOLS = [*PYTEST, NIXL, MOONCAKE, "hypothesis", "gguf", "peft", "opentelemetry-sdk", "jsonschema"]
TOOLS += ["aiohttp", "pyzmq", "openai", "httpx2", "schemathesis", "compressed-tensors", "loguru", "espeakng-loader"]
TOOLS += ["pocketsphinx", "soundfile", "build", "editables", "hatchling", "nox", "ruff", "mypy", "mkdocs-material"]
SITE = ("mkdocs", "build", "--strict", "--quiet")
TWO = ("-n", "2", "--dist", "loadfile")
MODELS = ["torch", "kernels_cpu", "qwen3", "qwen25", "qwen3_tts", "fish_s2", "kokoro", "diffusion", "transformers"]
MODELS = [f"tests/omni_{name}" for name in (*MODELS, "assistant", "demo", "testing")]
SHARDS = {
    "models": ("tests-models", "kernels"),
    "processes": ("tests-processes", "worlds", "faults", "attacks"),
    "engines": ("sglang", "ray", "clients", "lowest", "parity(5.24)"),
    "users": ("bare", "tests-users", "types", "site", "old-plugin", "examples", "template", "dist"),
}


@contextmanager
def part(session: nox.Session, name: str) -> Iterator[None]:
    """Print the seconds, and the processor-minutes of children, that a block takes."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        yield
    finally:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        session.log(f"{name}: {time.monotonic() - began:.0f} s, {used / 60:.1f} processor-minutes")


def ours() -> tuple[str, str]:
    """Return the constraint that takes our distributions from ``dist/``, and no stranger's of the same name from the index."""
    found = {name: next(DIST.glob(f"{name.replace('-', '_')}-*.whl")) for name in FOLDERS}
    (DIST / "ours.txt").write_text("".join(f"{name} @ {path.as_uri()}\n" for name, path in found.items()))
    return "-c", str(DIST / "ours.txt")


def install(session: nox.Session, *names: str, extra: Iterable[str] = (), bounds: Iterable[str] = CONSTRAINTS) -> None:
    """Install our wheels from ``dist/``, again even if the version did not change, and everything else from the index."""
    session.install(*ours(), *bounds, *names, *extra)
    session.install(*ours(), "--no-deps", "--force-reinstall", *names)
    session.run("python", "-m", "pip", "check", silent=True)


def pytest(session: nox.Session, *default: str, marked: str = "", **environment: str) -> None:
    """Run pytest with the session's arguments, or the default ones; torch has one thread in each process."""
    given = session.posargs or default
    session.run("python", "-m", "pytest", "-m", marked, *given, env={**ONE_THREAD, **environment})


def install_all(session: nox.Session) -> dict[str, str]:
    """Install every wheel and all tools, and return variables of the tests' environment."""
    install(session, *(name + EXTRAS.get(name, "") for name in NAMES), extra=TOOLS)
    session.run("omni", "plugins", "check", silent=True)
    # Only reference implementations import it, in processes of their own.
    oracle = Path(session.virtualenv.location) / "oracle"
    session.install("--no-deps", "--target", str(oracle), "torchvision==0.28.0")
    found = {"OMNI_ORACLE_PACKAGES": str(oracle)}
    bundle = next(Path(session.virtualenv.location).resolve().glob("lib/python*/site-packages/nixl_cu12.libs"), None)
    if bundle is not None and not Path("/usr/lib/x86_64-linux-gnu/libibverbs.so.1").exists():
        # Mooncake is linked with a library that NIXL's wheel brings, too.
        if not (bundle / "libibverbs.so.1").exists():
            (bundle / "libibverbs.so.1").symlink_to(next(bundle.glob("libibverbs-*.so*")))
        found["LD_LIBRARY_PATH"] = str(bundle)
    return found


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel of every distribution into dist/, two at a time, first the one that compiles."""
    session.install(*CONSTRAINTS, "build", "hatchling")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    command = ("python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(DIST))
    with part(session, "wheels"), ThreadPoolExecutor(2) as pool:
        names = sorted(FOLDERS, key=lambda name: name != "omni-kernels-cpu")
        list(pool.map(lambda name: session.run(*command, str(FOLDERS[name]), silent=True), names))


@nox.session(requires=BUILT)
def check(session: nox.Session) -> None:
    """Run what CI runs, in one environment: style, documentation, types, tests; print what each part used, 30 processor-minutes in all.

    Arguments go to pytest, and leave out the other parts: nox -- tests/omni_core.
    """
    with part(session, "installation"):
        environment = install_all(session)
    if not session.posargs:
        with part(session, "style"):
            session.run("ruff", "check", ".")
            session.run("ruff", "format", "--check", ".")
        with part(session, "documentation"):
            session.run(*SITE, env={"NO_MKDOCS_2_WARNING": "1"})
        with part(session, "types"):
            sources = [*FOLDERS.values(), *EXAMPLES]
            session.run("python", "-m", "mypy", *(str(folder / "src") for folder in sources))
        with part(session, "demo"):
            session.run("omni", "run", "demo", "--text", "Say hello.", "--seed", "1", silent=True, env=ONE_THREAD)
    with part(session, "tests"):
        pytest(session, *TWO, "--durations", "10", marked="not full", **environment)
    session.run("python", "tests/counts.py")


@nox.session(python=False)
def full(session: nox.Session) -> None:
    """Run everything that `nox` leaves out: nox -s full, or a shard by name, such as nox -s full -- models."""
    for shard in session.posargs or SHARDS:
        with part(session, shard):
            session.run("nox", "-s", *SHARDS[shard], external=True)


def add_full(name: str, doc: str, *paths: str) -> None:
    """Add the session of the tests of some folders that are marked ``full``, and of properties with more examples."""

    def run(session: nox.Session) -> None:
        if os.environ.get("CI") and not shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin"):
            # Without one, tests of the launcher `ssh` are skipped.
            get = "timeout 60 apt-get update -qq; timeout 120 apt-get install -qq --yes openssh-server openssh-client"
            session.run("sh", "-c", get, external=True, success_codes=range(256), silent=True)
        environment = {"OMNI_EXAMPLES": "thorough", **install_all(session)}
        session.install(*CONSTRAINTS, "matplotlib")  # It draws the report of the demo's training.
        pytest(session, *paths, *TWO, marked="full or hypothesis", **environment)

    run.__doc__ = doc
    nox.session(name=f"tests-{name}", requires=BUILT)(run)


OTHERS = [f"--ignore={each}" for each in (*MODELS, "tests/packaging")]
add_full("models", "Networks and kernels: all shapes and schemes, every comparison with a reference.", *MODELS)
add_full("processes", "Everything else: deaths, networks, soak.", "tests", *OTHERS)
add_full("users", "Tutorials, and pages whose commands are run.", "tests/packaging")


def add(name: str, doc: str, ours: str, extra: Iterable[str], *command: str, **environment: str) -> None:
    """Add a session that installs some distributions and runs pytest with these arguments, or a script or module."""

    def run(session: nox.Session) -> None:
        install(session, *(f"omni-{each}" for each in ours.split()), extra=extra)
        if command[0] == "-m" or command[0].endswith(".py"):
            session.run("python", *command, *session.posargs, env={**ONE_THREAD, **environment})
        else:
            pytest(session, *command, **environment)

    run.__doc__ = doc
    nox.session(python=PYTHONS or None if name == "bare" else None, name=name, requires=BUILT)(run)


# fmt: off
add("bare", "omni-core alone, on every supported Python: no torch, no plugin, and plain functions still make a pipeline.",
    "core", PYTEST, "tests/packaging/bare")
add("types", "mypy and pyright over a user's program.",
    "core qwen3 fish-s2", ("mypy", "pyright[nodejs]", *PYTEST), "tests/packaging/typed")
add("old-plugin", "A plugin for the API level before this core's, and one for the level after, are left out and named.",
    "core commands relay-shm", ("build", "hatchling"), "tests/packaging/old_plugin/check.py")
add("kernels", "The Triton kernels in Triton's interpreter, and compiled for GPUs that are not there.",
    "core torch testing kernels", (*PYTEST, "triton==3.9.0"), "tests/omni_kernels", "-n", "2", TRITON_INTERPRET="1")
add("ray", "Pipelines on a Ray cluster of three nodes on this machine.",
    "core torch testing commands launchers[ray] relay-nixl qwen3 demo", (*PYTEST, NIXL), "tests/omni_launchers/ray")
add("attacks", "Attacks on `omni serve demo`, beside a tenant whose requests must all be answered.",
    "core demo serve", ("aiohttp", "websockets", "pillow"), "tests/attacks/run.py")
add("faults", "The table of faults: what becomes of good requests beside harm of every kind.",
    "core torch relay-shm", ("psutil",), "tests/faults/table/run.py")
add("released", "Released weights that come inside packages of the index, beside transformers, llama.cpp and faster-whisper.",
    "core media transformers kokoro[onnx] relay-shm kernels-cpu serve assistant",
    (*PYTEST, "gguf", "espeakng-loader", "openai", "faster-whisper==1.2.1", "xllamacpp==2026.10.11549"),
    "tests/released", "-s", "--timeout", "3000", OMNI_RELEASED=str(ROOT / ".nox/.cache/released"))
add("worlds", "10,000 schedules of the simulated world.", "core torch testing", PYTEST, "-m", "omni_testing.world", "0", "10000")
# fmt: on


@nox.session(requires=BUILT)
def sglang(session: nox.Session) -> None:
    """SGLang's real scheduler behind our contract, without a GPU: tests/omni_sglang/cpu_shim.py replaces its kernels."""
    pins = str(ROOT / "tests/omni_sglang/constraints.txt")
    session.install("-c", pins, "torch", "pytest-xdist")
    session.install("--no-deps", "-r", pins)  # Its other requirements are kernels for GPUs.
    names = ["core", "commands", "torch", "testing", "media", "relay-kit", "relay-shm", "qwen3", "sglang"]
    session.install(*ours(), "--no-deps", "--force-reinstall", *(f"omni-{name}" for name in names))
    pytest(session, "tests/omni_sglang", "-n", "2", "--dist", "worksteal", OMNI_ORACLE_PACKAGES="")


@nox.session(name="instruction-sets", requires=BUILT)
def instruction_sets(session: nox.Session) -> None:
    """The compiled kernels of every instruction set, those that this processor lacks emulated. Needs AVX2 and SIMDe (libsimde-dev)."""
    install(session, "omni-core", "omni-torch", "omni-testing", "omni-kernels-cpu", extra=TOOLS)
    found = session.run("python", "-c", "import omni_kernels_cpu as it; print(it.__path__[0])", silent=True)
    session.run("python", str(FOLDERS["omni-kernels-cpu"] / "compile.py"), "--emulate", str(found).strip())
    pytest(session, "tests/omni_kernels_cpu", "-n", "2")


@nox.session(name="clients-server", requires=BUILT)
def clients_server(session: nox.Session) -> None:
    """Make the environment of the server that ``clients`` ask."""
    install(session, "omni-core", "omni-relay-shm", "omni-serve")


@nox.session(requires=["clients-server"])
@nox.parametrize("name", [nox.param(name, id=name) for name in CLIENTS])
def clients(session: nox.Session, name: str) -> None:
    """A client as it is, in an environment of its own, against a server: nox -s "clients(litellm)"."""
    session.install("-r", f"{CLIENT_TESTS / name}.txt")
    if name == "javascript":
        node = Path(session.virtualenv.location) / "node"
        shutil.copytree(CLIENT_TESTS / name, node, dirs_exist_ok=True)
        session.run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(node))
    server = Path(session.virtualenv.location).resolve().parent / "clients-server/bin/python"
    tests = (str(CLIENT_TESTS / f"test_{name}.py"), *session.posargs)
    session.run("pytest", "--confcutdir", str(CLIENT_TESTS), *tests, env={"OMNI_CLIENTS_SERVER": str(server)})


@nox.session(requires=BUILT)
@nox.parametrize("version", [nox.param(each, id=each) for each in ("5.23", "5.24")])
def parity(session: nox.Session, version: str) -> None:
    """Whole replies equal those of a release of transformers; `nox` alone compares more with that of constraints.txt."""
    environment = install_all(session)
    session.install(f"transformers=={version}.*")
    suites = ("tests/end_to_end/test_parity.py", "tests/omni_qwen25/test_parity.py", "tests/omni_transformers")
    pytest(session, *suites, *TWO, **environment)


@nox.session(requires=BUILT)
@nox.parametrize("name", [nox.param(name, id=name) for name in REFERENCES])
def references(session: nox.Session, name: str) -> None:
    """Ask a published implementation again for the answers that our network is compared with, in an environment of its own."""
    golden = ROOT / f"tests/omni_{name}/golden"
    install(session, "omni-core", f"omni-{name}", extra=REFERENCES[name])
    session.install("--no-deps", "--ignore-requires-python", "-r", str(golden / "requirements.txt"))
    session.run("python", str(golden / "make_golden.py"), env=ONE_THREAD)


@nox.session(requires=BUILT)
@nox.parametrize("name", [nox.param(name, id=name) for name in NAMES])
def dist(session: nox.Session, name: str) -> None:
    """One distribution with what it depends on, in an environment of its own, passes the conformance suites."""
    install(session, *dict.fromkeys(("omni-core", "omni-testing", name)))
    session.run("omni", "plugins", "check", "--full", env=ONE_THREAD)


@nox.session(requires=BUILT)
def lowest(session: nox.Session) -> None:
    """Qwen3-Omni with the lowest versions that our metadata allow, but torch as constraints.txt has it."""
    names = ("omni-core", "omni-testing", "omni-commands", "omni-media", "omni-relay-shm", "omni-torch", "omni-qwen3")
    bounds = dict[str, Version]()
    for name in names:
        project = tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text())["project"]
        for need in map(Requirement, project["dependencies"]):
            for each in need.specifier:
                if each.operator == ">=" and not need.name.startswith(("omni-", "torch")):
                    bounds[need.name] = max(Version(each.version), bounds.get(need.name, Version("0")))
    lines = re.findall(r"(?m)^torch==\S+$", (ROOT / "constraints.txt").read_text())
    lines += [f"{name}=={version}" for name, version in bounds.items()]
    (Path(session.create_tmp()) / "lowest.txt").write_text("\n".join(lines) + "\n")
    install(session, *names, bounds=("-c", str(Path(session.create_tmp()) / "lowest.txt")))
    session.run("omni", "plugins", "check", "--full", env=ONE_THREAD)


@nox.session(requires=BUILT, reuse_venv=False)
def examples(session: nox.Session) -> None:
    """The examples of third parties' distributions pass their own tests."""
    install(session, "omni-core", "omni-qwen3", "omni-diffusion", extra=("hatchling", "pytest-asyncio"))
    built = [f"{each}[test]" for each in EXAMPLES]
    session.install(*ours(), *CONSTRAINTS, "--no-build-isolation", *built)
    for example in EXAMPLES:
        with session.chdir(example):
            session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", env=ONE_THREAD)


@nox.session(requires=BUILT)
def template(session: nox.Session) -> None:
    """A new project of each kind is typed, installs, and passes its own tests."""
    install(session, "omni-core", "omni-testing", "omni-torch", extra=("hatchling", "mypy", "pytest-asyncio"))
    templates = FOLDERS["omni-testing"] / "src/omni_testing/authoring/templates"
    for kind in sorted(each.name for each in templates.iterdir() if each.name != "common"):
        folder = Path(session.create_tmp()).resolve() / kind
        shutil.rmtree(folder, ignore_errors=True)
        session.run("omni", "plugins", "new", f"my-{kind}", "--kind", kind, "--out", str(folder), silent=True)
        session.install(*ours(), *CONSTRAINTS, "--no-build-isolation", f"{folder}[test]")
        with session.chdir(folder):
            session.run("python", "-m", "mypy", "src", "tests")
            session.run("python", "-m", "pytest", "-q", env=ONE_THREAD)
    session.run("omni", "plugins", "check")


@nox.session(requires=BUILT)
def site(session: nox.Session) -> None:
    """Every page of the site, and the server's page, in headless Chromium: that of OMNI_CHROMIUM, one on the PATH, or one from npm."""
    browser = os.environ.get("OMNI_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    tools = (*PYTEST, "mkdocs-material", "playwright", "httpx2", "openai")
    install(session, "omni-core", "omni-relay-shm", "omni-serve", extra=tools)
    folder = Path(session.virtualenv.location)
    session.run(*SITE, "--site-dir", str(folder / "site"), env={"NO_MKDOCS_2_WARNING": "1"})
    if browser is None:
        session.run("npm", "install", "--silent", "--prefix", str(folder), "@sparticuz/chromium@147.0.0", external=True)
        ask = "import('@sparticuz/chromium').then(async found => console.log(await found.default.executablePath()))"
        with session.chdir(folder):
            browser = str(session.run("node", "-e", ask, external=True, silent=True, env={"TMPDIR": str(folder)}))
    session.run("npm", "install", "--silent", "--prefix", str(folder), "axe-core@4.14.1", external=True)
    axe = folder / "node_modules" / "axe-core" / "axe.min.js"
    environment = {"OMNI_SITE": str(folder / "site"), "OMNI_CHROMIUM": browser.strip(), "OMNI_AXE": str(axe)}
    pytest(session, "tests/packaging/site", "tests/omni_serve/page", **environment)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: the demo's checkpoint answers with text and speech. Arguments replace those of `omni run`."""
    with ThreadPoolExecutor(2) as pool:  # Unpacking torch takes longest.
        together = (("torch", "--no-deps"), ("hatchling", "transformers", "av"))
        list(pool.map(lambda names: session.install(*CONSTRAINTS, *names), together))
    needed = "core commands media torch relay-kit relay-shm qwen3 demo"  # No compiled kernels: they are optional.
    session.install(*CONSTRAINTS, "--no-build-isolation", *(str(FOLDERS[f"omni-{name}"]) for name in needed.split()))
    arguments = session.posargs or ["demo", "--text", "Say hello.", "--seed", "1", "--out", "reply.wav"]
    session.run("omni", "run", *arguments)
