"""The entry point of omni-planner."""

from __future__ import annotations

from omni_core.api import CommandComponent, Component, ServiceComponent, hookimpl


@hookimpl
def omni_commands() -> list[Component]:
    """Return the commands by name."""
    return [
        Component(
            "plan --optimize",
            "omni_planner.optimize:optimize_command",
            "Search the placement that meets objectives at the lowest cost.",
        ),
        Component(
            "plan --simulate", "omni_planner.simulate:simulate_command", "Predict what the pipeline does under a load."
        ),
        CommandComponent(
            "simulate",
            "omni_planner.simulate:simulate_command",
            "Predict what a pipeline does under a load.",
            section="Prepare",
        ),
    ]


@hookimpl
def omni_services() -> list[ServiceComponent]:
    """Return admission by objectives."""
    return [
        ServiceComponent(
            "objectives", "omni_planner.admission.options:policy_of", "requests wait or are refused", slot="admission"
        )
    ]
