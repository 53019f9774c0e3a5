"""What happens in one stage of a pipeline: messages come in, its scheduler computes, outputs go out.

:class:`~omni_core.stage.stage.Stage` takes messages in (``requests.py`` keeps what has come, ``fan_in.py`` merges), and
:class:`~omni_core.stage.outputs.Outputs` hands on what the scheduler puts out (``routing.py`` decides where to, ``outbound.py`` sends).
``assembly.py`` builds the scheduler from a stage's config, and ``ranks.py`` keeps the ranks of a tensor parallel stage in step.
"""

__all__ = ["assembly", "fan_in", "mutation", "outbound", "outputs", "ranks", "requests", "routing", "stage"]
