"""The service ``profiles``: each half is imported in the process that makes it."""

from __future__ import annotations

from typing import Any

from omni_core.runtime_api import Profiling


class Profiles:
    """See :class:`omni_core.services.Profiles`."""

    @staticmethod
    def process(*arguments: Any) -> Any:
        """Make the profile of a stage process."""
        from omni_cli.tracing.process import ProcessProfile

        return ProcessProfile(*arguments)

    @staticmethod
    def pipeline(*arguments: Any) -> Profiling:
        """Make the profiles of a running pipeline."""
        from omni_cli.tracing.profiling import PipelineProfile

        return PipelineProfile(*arguments)
