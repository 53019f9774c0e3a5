"""One stage of a pipeline: messages come in, its scheduler computes, and outputs go out.

:class:`~omni_core.stage.stage.Stage` takes messages in, and :class:`~omni_core.stage.outputs.Outputs` hands on what the scheduler puts
out. :func:`build_scheduler` makes the scheduler from a stage's spec, and the ranks of a tensor parallel stage are
kept in step by a service.
"""

from omni_core.stage.assembly import assemble, build_scheduler

__all__ = ["assemble", "build_scheduler"]
