"""Registers the ``sglang`` scheduler."""

from __future__ import annotations

from importlib.util import find_spec

from omni_core.api import Component, SchedulerComponent, hookimpl

SGLANG_VERSION = "0.5.23"
"""The one version that the adapter is written against. SGLang's scheduler has no stable interface: see docs/sglang.md.
"""


def probe() -> str | None:
    """Return why SGLang cannot work here, or ``None``."""
    from importlib.metadata import PackageNotFoundError, version  # 10 ms, which the start of `omni` need not spend

    try:
        found = version("sglang")
    except PackageNotFoundError:
        return f"sglang is not installed (pip install sglang=={SGLANG_VERSION})"
    if found != SGLANG_VERSION:
        return f"sglang {found} is installed; this plugin works with {SGLANG_VERSION} only (pip install sglang=={SGLANG_VERSION})"
    missing = [name for name in ("triton", "sgl_kernel") if find_spec(name) is None]
    if missing:
        return f"sglang {found} is installed without {' and '.join(missing)}: this is not an installation for a GPU"
    return None


@hookimpl
def omni_schedulers() -> list[Component]:
    summary = "SGLang's scheduler: radix cache, continuous batching, retraction"
    target = "omni_sglang.scheduler:OmniScheduler"
    requires = ("torch", "sglang")
    return [SchedulerComponent("sglang", target, summary, requires=requires, probe=probe, runs_model_runners=True)]
