"""The environment of a computation: versions, sources, processor, threads, the checkpoint; and the differences between two."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omni_core.protocol.specs import StageSpec
from omni_core.references import imported

_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "TOKENIZERS_PARALLELISM",
)
"""Variables that change the order in which numbers are added."""

_DISTRIBUTIONS = {"PIL": "pillow", "yaml": "pyyaml", "cv2": "opencv-python", "av": "av", "_cffi_backend": "cffi"}
"""Packages whose distribution has another name. To look in all installed distributions for it would take seconds on a busy machine."""


def describe(stages: Iterable[StageSpec], like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what this process computes with, as plain data. It reads sources, which takes a while: call it in a thread.

    Args:
        like: another environment; what is in that one is looked up here even if nothing has imported it.

    Returns:
        ``versions`` of the distributions whose modules are imported; ``sources``, digests of the packages of omni and of those that
        the stages name; ``models``, digests of the checkpoints' files by name and size; ``machine``, by name.
    """
    stages, like = list(stages), like or {}
    roots = {name.partition(".")[0] for name in list(sys.modules)} - sys.stdlib_module_names
    own = {reference.partition(".")[0].partition(":")[0] for spec in stages for reference in references(spec)}
    versions = {"python": platform.python_version()}
    for name in {_DISTRIBUTIONS.get(root, root).lower().replace("_", "-") for root in roots} | {
        *like.get("versions", ())
    }:
        try:
            versions[name] = versions.get(name) or version(name)
        except (PackageNotFoundError, ValueError):
            continue  # a module of the user's own
    packages = {name for name in roots if name.startswith("omni_")} | own
    packages |= {
        name for name in like.get("sources", ()) if name.isidentifier()
    }  # to find one in a package would import that
    return {
        "versions": dict(sorted(versions.items())),
        "sources": {name: digest for name in sorted(packages) if (digest := _source(name))},
        "models": _models(stages),
        "machine": _machine(),
    }


def references(spec: StageSpec) -> list[str]:
    """Return the references that a stage's spec names: what a process imports that builds the stage."""
    named = [getattr(spec, name) for name in ("factory", "model_runner", "feedback", "scheduler", *FUNCTIONS)]
    return [name for name in [*named, *spec.project_payload.values()] if name]


FUNCTIONS = ("route_fn", "wait_for_fn", "merge_fn", "expand_fn", "stream_done_to_fn")


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return in what two environments differ, a line for each, of what the recording process used."""
    lines = []
    for kind in ("versions", "machine"):
        then, now = recorded.get(kind, {}), here.get(kind, {})
        lines += [
            f"{name}: {value} then, {now.get(name, 'nothing')} here"
            for name, value in sorted(then.items())
            if value != now.get(name)
        ]
    then, now = recorded.get("sources", {}), here.get("sources", {})
    lines += [
        f"{name}: its sources {'are not those of then' if name in now else 'are not here'}"
        for name, digest in sorted(then.items())
        if digest != now.get(name)
    ]
    mine = list(here.get("models", {}).values())
    other = [path for path, digest in sorted(recorded.get("models", {}).items()) if digest not in mine]
    return lines + [f"{path}: the checkpoint has other files here" for path in other]


def _source(package: str) -> str:
    """Return a digest of a package's sources; empty if it has none."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return ""
    if spec is None or spec.origin is None:
        return ""
    root = Path(spec.origin)
    files = sorted(root.parent.rglob("*.py")) if spec.submodule_search_locations is not None else [root]
    digest = hashlib.blake2b(digest_size=6)
    for path in files:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        digest.update(f"{path.relative_to(root.parent)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _models(stages: Iterable[StageSpec]) -> dict[str, str]:
    found = {}
    for path in dict.fromkeys(str(spec.injected.get("model_path", "")) for spec in stages):
        folder = Path(path)
        if path and folder.is_dir():
            digest = hashlib.blake2b(digest_size=6)
            for each in sorted(folder.iterdir()):
                if each.is_file():
                    digest.update(f"{each.name}\0{each.stat().st_size}\0".encode())
                    if each.name == "config.json":
                        digest.update(each.read_bytes())
            found[path] = digest.hexdigest()
    return found


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {"system": f"{platform.system()} {platform.machine()}", "processor": _processor()}
    found |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    torch = imported("torch")
    if torch is not None:
        found["threads of torch"] = torch.get_num_threads()
        found["instructions of torch"] = torch.backends.cpu.get_cpu_capability()
        if torch.cuda.is_available():
            found["GPU"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
