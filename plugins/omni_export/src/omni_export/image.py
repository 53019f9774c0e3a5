"""The Dockerfile of an image for every machine of a deployment, built from wheels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from omni_cli.deploy.source import LayeredSource
from omni_core.errors import ConfigError
from omni_core.plugins import load_plugins

COMMON = ("omni-core", "omni-serve", "omni-launchers", "omni-torch", "omni-relay-nixl[cu12]")
"""The distributions of every image: the server, hosts and a relay that joins them, the engine."""

OF_VARIANT = {"cpu": ("omni-kernels-cpu",), "cuda": ("omni-kernels",)}

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""The index of PyTorch's builds without CUDA."""

_PLAIN = re.compile(r"[\w.-]+")
"""A word that a shell takes as it is."""

_WORD = re.compile(r"[\w./:@=+,\[\]<>~!-]+")


def dockerfile(
    pipelines: Sequence[str], variant: str, packages: Sequence[str], wheels: str, constraints: str | None, python: str
) -> str:
    """Return a Dockerfile.

    Args:
        pipelines: names of those whose distributions are installed. variant: ``cpu`` or ``cuda``. packages: further distributions.
        wheels, constraints: paths in the folder of the build. python: the version of Python.

    Raises:
        PluginError: no such pipeline. ConfigError: a text cannot be a word of a command.
    """
    for text in (*packages, wheels, constraints or "", python):
        if text and not _WORD.fullmatch(text):
            raise ConfigError(f"{text!r} cannot be a part of a Dockerfile")
    registry = load_plugins()
    record_of = {each.name: record for each, record in registry.components("omni_pipelines")}
    made = [record_of[LayeredSource(name).component(registry).name].distribution for name in pipelines]
    names = list(dict.fromkeys([*COMMON, *OF_VARIANT[variant], *made, *packages]))
    words = ["--no-cache-dir", "--find-links", "wheels"]
    words += ["--extra-index-url", CPU_INDEX] if variant == "cpu" else []
    words += ["--constraint", "constraints.txt"] if constraints is not None else []
    install = " \\\n        ".join(
        [" ".join(words), *(name if _PLAIN.fullmatch(name) else f'"{name}"' for name in names)]
    )
    copies = [f"COPY {wheels.rstrip('/')}/ wheels/"]
    copies += [f"COPY {constraints} constraints.txt"] if constraints is not None else []
    stages = [
        "# syntax=docker/dockerfile:1",
        f"# An image of omni ({variant}) for servers and hosts. Written by omni export docker; docker build -t IMAGE . builds it.",
        f"FROM python:{python}-slim-bookworm AS build",
        "WORKDIR /build",
        *copies,
        "RUN python -m venv /opt/omni \\",
        f"    && /opt/omni/bin/pip install {install}",
        "",
        f"FROM python:{python}-slim-bookworm",
        *(_COMPILER if variant == "cuda" else []),
        "COPY --from=build /opt/omni /opt/omni",
        "# A new volume takes the owner of the folder that it is mounted over.",
        "RUN useradd --uid 1000 --create-home omni && install -d -o 1000 -g 1000 /models",
        *(_DRIVER if variant == "cuda" else []),
        "ENV PATH=/opt/omni/bin:$PATH PYTHONUNBUFFERED=1",
        "USER 1000",
        "WORKDIR /home/omni",
        "EXPOSE 8000",
        'CMD ["omni", "--help"]',
    ]
    return "\n".join(stages) + "\n"


_COMPILER = [
    "# Triton compiles the callers of its kernels.",
    "# hadolint ignore=DL3008",
    "RUN apt-get update \\",
    "    && apt-get install --yes --no-install-recommends gcc libc6-dev \\",
    "    && rm -rf /var/lib/apt/lists/*",
]
_DRIVER = [
    "# CUDA's libraries come with PyTorch; the driver's come from the host.",
    "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",
]
