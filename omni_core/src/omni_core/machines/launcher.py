"""The contract of launchers: they find machines for the units of a run, and machines start processes.

A unit asks for a place at each launch, so a machine that is lost is a restart like any other: its processes end, and the next launch asks
again. ``docs/decisions/0014-launchers.md`` says why there is no other report of a loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import attrs
from attrs import field, frozen

from omni_core.config.schema import PipelineConfig
from omni_core.config.settings import read_settings
from omni_core.control.network import Network
from omni_core.errors import StartupError
from omni_core.processes.process import SupervisedProcess
from omni_core.protocol.specs import NetworkSpec, ProcessSpec

S = TypeVar("S", bound=attrs.AttrsInstance)


@frozen
class Need:
    """The request of one unit for a machine: one process, or the ranks of a tensor parallel stage, which stay together, unless their
    ``host`` differs: then those of each host are a need of their own.

    Attributes:
        unit: its name, or that of the first rank on the ``host``; unique in the run.
        stages: those of its processes.
        processes: how many it has.
        gpus: the pipeline's numbers of its devices. Units of one ``host`` that name the same number share that device, so they are on one
            machine.
        host: ``StageConfig.host``. Units of equal name are on one machine; ``None``: where the launcher likes.
        cpus, memory: what all its processes need together, the memory in bytes; ``None``: the config does not say.
        labels: those that its machine must have.
    """

    unit: str
    stages: tuple[str, ...] = ()
    processes: int = 1
    gpus: tuple[int, ...] = ()
    host: str | None = None
    cpus: float | None = None
    memory: int | None = None
    labels: Mapping[str, str] = field(factory=dict)


class RunMachine(ABC):
    """A machine on which a run may start processes, until it is lost or the launcher is released.

    When it is lost, its processes end (:attr:`SupervisedProcess.reason` says why), and :meth:`start` raises.

    Attributes:
        name: equal for one machine: processes there share its memory, its devices and ``directory``.
        directory: its private (0700) folder for this run, with a random name.
        host: a name or number by which relays of other machines reach it.
    """

    name: str
    directory: str
    host: str

    @abstractmethod
    def start(self, spec: ProcessSpec, on_exit: Callable[[SupervisedProcess], None]) -> SupervisedProcess:
        """Start a process. It has an ``address`` of the launcher's network, if there is one, as soon as it is launched.

        Args:
            on_exit: called once, with the process, when it has ended.

        Raises:
            OSError: not here, or not now; the unit will ask for another place.
        """

    async def free_port(self) -> int:
        """Return a TCP port of ``host`` that nobody uses now: the ranks of a stage that is on several machines meet there.

        Raises:
            StartupError: the machine is lost, or, by default, always.
        """
        raise StartupError(f"ranks of one stage cannot be on several machines: a {type(self).__name__} has no port")


@frozen
class Grant:
    """The machine on which one unit may run now.

    Attributes:
        environment: variables of its processes, such as ``CUDA_VISIBLE_DEVICES``.
        devices: by the pipeline's number of a device, the one that it has in its processes, where that is another.
    """

    machine: RunMachine
    environment: Mapping[str, str] = field(factory=dict)
    devices: Mapping[int, int] = field(factory=dict)


@frozen
class LauncherOptions:
    """The arguments of a launcher.

    Attributes:
        run: the run's name, unique over all machines.
        directory: its private folder on this machine.
        config: the pipeline.
        settings: those of its ``launcher``, checked by :meth:`read_settings`.
    """

    run: str
    directory: Path
    config: PipelineConfig
    settings: dict[str, Any] = field(factory=dict)

    def read_settings(self, cls: type[S]) -> S:
        """``settings`` as an attrs class of the launcher's. Raises ConfigError."""
        return read_settings(cls, self.settings, "launcher")


class Launcher(ABC):
    """Finds machines for the units of one run. Made with :class:`LauncherOptions` and called on the runner's event loop.

    Attributes:
        anywhere: units without a ``host`` may be on any machine. False: they are on the runner's.
        here: the runner's machine.
        network_spec: how processes reach other machines; ``None``: the run has one machine.
    """

    anywhere: ClassVar[bool] = False
    here: RunMachine
    network_spec: NetworkSpec | None = None

    @abstractmethod
    def __init__(self, options: LauncherOptions) -> None:
        """Raises ConfigError: the config, a setting or this machine does not allow it. Nothing is left behind then."""

    def network(self) -> Network | None:
        """The runner's own end of the network, closed by the runner. Called once, after :meth:`acquire`."""
        return None

    @abstractmethod
    async def acquire(self, needs: Sequence[Need]) -> None:
        """Claim what all units need, or nothing. Called once, before the first :meth:`place`.

        Raises:
            StartupError: what cannot be met, by unit or host.
        """

    async def add(self, need: Need) -> None:
        """Claim what one more unit needs, while the others run.

        Raises:
            StartupError: it cannot be met; by default none can. The run goes on as before.
        """
        raise StartupError(f"{need.unit}: the launcher {type(self).__name__} cannot add units to a run")

    async def remove(self, unit: str) -> None:  # noqa: B027  (a launcher that claims nothing needs none)
        """Give back what a unit claimed that has ended for good, or was never launched."""

    @abstractmethod
    async def place(self, unit: str) -> Grant:
        """Return a place for the next launch of a unit; waits until there is one. May be cancelled.

        Raises:
            StartupError: there is none now; the launch counts as failed, and the unit asks again after its back-off.
        """

    def waits_for(self, unit: str) -> str:
        """Say what :meth:`place` waits for, for messages of a start that took too long; empty: for nothing."""
        return ""

    @abstractmethod
    async def release(self) -> None:
        """Give back what was claimed, everywhere, and end what is left there. The runner has ended its processes, as far as their machines
        are there. Idempotent; also after a failed acquire.
        """
