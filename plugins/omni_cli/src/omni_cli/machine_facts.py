"""The resources of this machine: memory, disk, GPUs and their driver, the installed torch, and the cache of the Hugging Face hub.

Nothing here imports torch or touches a GPU. Sizes are bytes; ``None`` is what cannot be known.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omni_cli.deploy.devices import detect

_QUERY = ("index", "name", "memory.total", "memory.used", "driver_version", "compute_cap")
_SMI_SECONDS = 15.0


def machine() -> dict[str, Any]:
    """Return the facts of this machine."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": memory_limit(),
        "memory_available": available_memory(),
        "shared_memory_free": _free("/dev/shm"),
        "temporary_files": _free(os.environ.get("TMPDIR", "/tmp")),
        "gpus_visible": detect(),
        **graphics(smi_output()),
        "torch": torch_build(),
        "hub": hub(),
    }


def memory_limit(cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the memory that this machine, or this container, has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(cgroup.read_text()))
    except (OSError, ValueError):  # no cgroup, or "max"
        return total


def available_memory(
    table: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup/memory.max")
) -> int | None:
    """Return the memory that new processes can have without swapping, in this machine and this container."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", table.read_text(), re.MULTILINE)
    except OSError:
        return None
    return min(int(found[1]) * 1024, _left_of(cgroup)) if found else None


def _left_of(cgroup: Path) -> int:
    """Return what a container may still take. Pages of files are not counted: they are dropped when memory is needed."""
    limit = memory_limit(cgroup)
    try:
        statistics = dict(line.split() for line in cgroup.with_name("memory.stat").read_text().splitlines())
        used = int(cgroup.with_name("memory.current").read_text()) - int(statistics.get("inactive_file", 0))
    except (OSError, ValueError):  # the root of the tree says nothing of its use
        return limit
    return max(0, limit - used)


def _free(folder: str | Path) -> int | None:
    """Return the free space of a folder, or of the nearest above it that exists."""
    path = Path(folder).expanduser()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free if path != Path(path.root) or path == Path(folder) else None
    except OSError:
        return None


def smi_output() -> str:
    """Return what ``nvidia-smi`` says, and nothing where there is none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    query = [command, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True).stdout
        banner = subprocess.run([command], capture_output=True, text=True, timeout=_SMI_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return gpus + banner


def graphics(output: str) -> dict[str, Any]:
    """Return the GPUs, their driver and the CUDA version that it supports, from the output of ``nvidia-smi``."""
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line[:1].isdigit()]
    gpus = [
        {"name": name, "memory": _mebibytes(total), "memory_used": _mebibytes(used), "compute_capability": capability}
        for _, name, total, used, _, capability in (row for row in rows if len(row) == len(_QUERY))
    ]
    cuda = re.search(r"CUDA Version:\s*([0-9.]+)", output)
    driver = next((row[4] for row in rows if len(row) == len(_QUERY)), None)
    return {"gpus": gpus, "driver": driver, "driver_cuda": cuda[1] if cuda else None}


def _mebibytes(text: str) -> int | None:
    return int(text) * 2**20 if text.isdigit() else None


def torch_build() -> dict[str, Any] | None:
    """Return version and CUDA version of the installed torch, read from its files; ``None`` if there is none."""
    found = find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return None
    try:
        text = Path(found.submodule_search_locations[0], "version.py").read_text()
    except OSError:
        return None
    read = dict(re.findall(r"^(__version__|cuda)\b[^=]*= *'([^']*)'", text, re.MULTILINE))
    return {"version": read.get("__version__"), "cuda": read.get("cuda")}


def hub() -> dict[str, Any] | None:
    """Return where downloaded checkpoints are, and if there is a token; ``None`` without huggingface-hub."""
    try:
        from huggingface_hub import constants, get_token
    except ModuleNotFoundError:
        return None
    cache = Path(constants.HF_HUB_CACHE)
    models = sorted(each.name.removeprefix("models--").replace("--", "/") for each in cache.glob("models--*"))
    return {
        "cache": str(cache),
        "cache_free": _free(cache),
        "models": models,
        "token": get_token() is not None,
        "offline": bool(constants.HF_HUB_OFFLINE),
        "endpoint": constants.ENDPOINT,
    }


def advice(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what to do about the machine, a line each."""
    shared, torch = facts["shared_memory_free"], facts["torch"]
    if shared is not None and shared < 512 * 2**20:
        yield "shared memory is small; give the container more (docker run --shm-size=2g)"
    if facts["gpus"] and torch is not None and torch["cuda"] is None and "rocm" not in (torch["version"] or ""):
        yield (
            f"the installed torch {torch['version']} cannot use the GPU: it is a build for CPUs; "
            "install one for CUDA (https://pytorch.org/get-started/locally)"
        )
    elif (
        torch is not None
        and torch["cuda"]
        and facts["driver_cuda"]
        and _major(torch["cuda"]) > _major(facts["driver_cuda"])
    ):
        yield (
            f"the driver {facts['driver']} supports CUDA {facts['driver_cuda']}, torch {torch['version']} needs {torch['cuda']}; "
            f"update the driver, or install a torch for CUDA {_major(facts['driver_cuda'])}"
        )
    elif facts["gpus"] and facts["gpus_visible"] == []:
        yield (
            "the GPUs are not visible to programs here: "
            f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '(not set)')}, or the container has no libcuda.so.1"
        )


def _major(version: str) -> int:
    return int(version.split(".")[0])
