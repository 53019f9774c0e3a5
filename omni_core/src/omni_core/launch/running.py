"""The parts of a running pipeline, for operations that change it, which are a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from attrs import define

from omni_core.config.schema import PipelineConfig
from omni_core.control.plane import ControlPlane
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.replicas import ReplicaChoice
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.turns import AdmittingMachine
from omni_core.launch.observation import Observation
from omni_core.launch.prepare import PreparedPipeline
from omni_core.machines import Launcher, Placing
from omni_core.plugins import PluginRegistry
from omni_core.processes.supervisor import Owner, Supervisor
from omni_core.protocol.operation_messages import Change
from omni_core.services import ADMISSION, OPERATIONS


@define(eq=False, kw_only=True)
class Running:
    """The parts of a running pipeline.

    Attributes:
        config: as it is now; operations set it.
        prepare: :func:`omni_core.launch.prepare.prepare` of a config and its replicas, for this run.
        units: by name.
        entry: by stage and number of the replica, the endpoints that the coordinator sends to.
        owner: that of supervisors.
        stop_timeout: seconds that a process has to end by itself.
    """

    config: PipelineConfig
    prepare: Callable[..., PreparedPipeline]
    registry: PluginRegistry
    launcher: Launcher
    placing: Placing
    units: dict[str, Supervisor]
    entry: Mapping[str, dict[int, str]]
    control: ControlPlane
    coordinator: Coordinator
    observation: Observation
    choice: ReplicaChoice
    owner: Owner
    stop_timeout: float


class RunningOperations(Protocol):
    """Changes a running pipeline. Made with its :class:`Running`, and called on its event loop."""

    def begin(self) -> None:
        """Every stage is ready for the first time: begin what goes by itself."""

    async def replace(
        self,
        stage: str,
        settings: Mapping[str, Any] | None = None,
        on_step: Callable[[str], None] | None = None,
        *,
        wait: bool = True,
    ) -> Change:
        """See :meth:`omni_core.client.AsyncPipe.replace`."""

    async def scale(
        self,
        stage: str,
        replicas: int,
        settings: Mapping[str, Any] | None = None,
        on_step: Callable[[str], None] | None = None,
        *,
        wait: bool = True,
    ) -> Change:
        """See :meth:`omni_core.client.AsyncPipe.scale`."""

    def handle(self, message: Any) -> None:
        """Handle a message of a command (:mod:`omni_core.protocol.operation_messages`)."""

    def close(self) -> None:
        """Begin no more steps: the runner ends all units."""


def operations_of(running: Running) -> RunningOperations:
    """Return the operations on a running pipeline.

    Raises:
        PluginError: they are not installed.
    """
    return OPERATIONS.need("changing a running pipeline needs", running.registry)(running)


def machine_of(config: PipelineConfig) -> Callable[..., RequestMachine]:
    """Return what makes the state machine of the requests: the core's own, or one with objectives of ``admission``.

    Raises:
        PluginError: it is not installed. ConfigError: a setting in ``admission`` is wrong.
    """
    if not config.admission:
        return RequestMachine
    return partial(AdmittingMachine, policy=ADMISSION.need("`admission` needs")(config))
