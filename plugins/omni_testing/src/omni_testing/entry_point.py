"""The entry point of omni-testing."""

from __future__ import annotations

from omni_core.hookspecs import ServiceComponent, hookimpl


@hookimpl
def omni_services() -> list[ServiceComponent]:
    """Return the check for ``OMNI_CHECK_MUTATION=1``."""
    return [ServiceComponent("digests", "omni_testing.mutation:seal", "finds changed payloads", slot="mutation-seal")]
