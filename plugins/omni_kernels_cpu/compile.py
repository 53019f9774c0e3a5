"""Compile the library while the wheel is built, or for an editable installation; needs g++ or clang++ and nothing else.

The sources use vector extensions of these compilers. One file is compiled once for each instruction set; the library chooses when it
is loaded, so that a wheel works on every processor of its architecture. Alone: `python compile.py` makes it in src/, and
`python compile.py --emulate FOLDER` makes one for tests, which computes the code of every instruction set on any processor with AVX2.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # called alone
    BuildHookInterface = object  # type: ignore[assignment,misc]

HERE = Path(__file__).parent
NATIVE, PACKAGE = HERE / "native", HERE / "src/omni_kernels_cpu"
LIBRARY, REASON = "libomni_kernels_cpu.so", "not_compiled.txt"

FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-ffp-contract=fast",
    "-pthread",
]
WARNINGS = ["-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-uninitialized", "-Wno-psabi"]
WIDE = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"]
PAIRS = [*WIDE, "-mavx512bf16", "-mavx512vnni"]
"""Every processor that multiplies pairs of bfloat16 multiplies fours of int8 too."""

INSTRUCTION_SETS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": WIDE,
    "avx512_bf16": PAIRS,
    "amx": [*PAIRS, "-mamx-tile", "-mamx-bf16"],
}
"""The flags of each; architectures other than x86-64 have the portable one only."""

EMULATED = {"avx512": 1, "avx512_bf16": 2, "amx": 3}
"""Values of EMULATE in emulation.h, by instruction set."""

NEEDED = ("portable",)
"""Without the others, which a compiler may be too old for, the library works with what it has."""


class CompileHook(BuildHookInterface):
    """Add the library to the wheel, which is then for this platform; or the reason why there is none."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        made = compile_library(PACKAGE)
        build_data["artifacts"] += [f"src/omni_kernels_cpu/{LIBRARY}", f"src/omni_kernels_cpu/{REASON}"]
        if made:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def compile_library(folder: Path) -> bool:
    """Compile into ``folder``, unless the library there is newer than its sources; return False, and write the reason beside
    it, if that fails.
    """
    library, reason = folder / LIBRARY, folder / REASON
    sources = [*NATIVE.iterdir(), Path(__file__)]
    if library.exists() and library.stat().st_mtime > max(each.stat().st_mtime for each in sources):
        return True
    library.unlink(missing_ok=True)
    reason.unlink(missing_ok=True)
    compiler = _compiler()
    problem = _problem(compiler)
    if problem is None:
        assert compiler is not None
        try:
            _compile(compiler, library)
            return True
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            problem = f"{compiler} failed: {said.strip().splitlines()[0] if said.strip() else error}"
            print(said, file=sys.stderr)
    print(f"omni-kernels-cpu is built without its library: {problem}", file=sys.stderr)
    reason.write_text(problem + "\n")
    return False


def _compiler() -> str | None:
    return os.environ.get("CXX") or next(filter(shutil.which, ("g++", "clang++", "c++")), None)


def _problem(compiler: str | None) -> str | None:
    if sys.platform != "linux":
        return f"it was built on {sys.platform}; the kernels are for Linux"
    return "no C++ compiler was found when it was built (apt install g++)" if compiler is None else None


def _compile(compiler: str, library: Path, *, emulate: bool = False) -> None:
    sets = INSTRUCTION_SETS if platform.machine() == "x86_64" else {"portable": []}
    needed, whole = set(NEEDED), list[str]()
    if emulate:
        sets, needed, whole = {name: _emulated(name, flags) for name, flags in sets.items()}, set(sets), ["-DEMULATED"]
    with tempfile.TemporaryDirectory() as scratch:
        jobs = [
            ([*flags, f"-DNAME={name}", "-c", str(NATIVE / "kernels.cpp")], f"{scratch}/{name}.o")
            for name, flags in sets.items()
        ]
        jobs += [([*whole, "-c", str(NATIVE / f"{name}.cpp")], f"{scratch}/{name}.o") for name in ("pool", "library")]

        def run(job: tuple[list[str], str]) -> bool:
            command = [*compiler.split(), *FLAGS, *WARNINGS, *job[0], "-o", job[1]]
            made = subprocess.run(command, check=False, capture_output=True, text=True)
            if made.returncode and Path(job[1]).stem in set(sets) - needed:
                print(f"{compiler} leaves out {Path(job[1]).stem}: {made.stderr.strip()[:500]}", file=sys.stderr)
                return False
            made.check_returncode()
            return True

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            done = list(pool.map(run, jobs))
        objects = [target for (_, target), works in zip(jobs, done, strict=True) if works]
        made = f"{scratch}/{LIBRARY}"
        link = [*compiler.split(), "-shared", "-pthread", *objects, "-o", made]
        subprocess.run(link, check=True, capture_output=True, text=True)
        shutil.copy(made, library.with_suffix(".new"))
        os.replace(library.with_suffix(".new"), library)


def _emulated(name: str, flags: list[str]) -> list[str]:
    if name not in EMULATED:
        return flags
    # Without warnings: SIMDe's have many, which are none of ours.
    return [*INSTRUCTION_SETS["avx2"], "-w", f"-DEMULATE={EMULATED[name]}", "-include", str(HERE / "emulation.h")]


def emulate(folder: Path) -> None:
    """Compile a library into ``folder`` that has the code of every instruction set, those that this processor lacks emulated: for tests.

    Raises:
        SystemExit: there is no folder or no compiler, or it fails, as without SIMDe.
    """
    if not folder.is_dir():
        sys.exit(f"{folder} is no folder: give that of an installed omni_kernels_cpu")
    compiler = _compiler()
    problem = _problem(compiler)
    if problem is not None or compiler is None:
        sys.exit(f"cannot compile: {problem}")
    try:
        _compile(compiler, folder / LIBRARY, emulate=True)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.stderr[:2000]}\n{compiler} failed; emulation.h needs SIMDe (apt install libsimde-dev)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--emulate"] and len(sys.argv) == 3:
        emulate(Path(sys.argv[2]))
    elif sys.argv[1:]:
        sys.exit("usage: compile.py [--emulate FOLDER]")
    else:
        sys.exit(not compile_library(PACKAGE))
