"""The addresses of a run's processes: a Unix-domain socket each, and a TCP address each if there are several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from omni_core.config.placement import PlannedProcess


@frozen
class MachineAddress:
    """One host of a run.

    Attributes:
        directory: its private (0700) folder for this run.
        address: the name or number by which other hosts reach it.
        listening: a ``tcp://`` address for each process that the run has here, in the order of the plan; empty if there is
            only one host.
    """

    directory: str
    address: str = "127.0.0.1"
    listening: list[str] = field(factory=list)


@frozen
class MachineAddresses:
    """All hosts of a run.

    Attributes:
        here: this host. coordinator: the ``tcp://`` address of its coordinator, if there are other hosts.
        others: the others, by the names of the config.
    """

    here: MachineAddress
    coordinator: str | None = None
    others: dict[str, MachineAddress] = field(factory=dict)

    @property
    def coordinator_endpoint(self) -> str:
        return f"ipc://{self.here.directory}/coordinator.sock"

    def of(self, host: str | None) -> MachineAddress:
        return self.here if host is None else self.others[host]

    def endpoints(self, planned: Sequence[PlannedProcess]) -> dict[str, str]:
        """The endpoint of each process by its name. An endpoint is the same on every host."""
        return {
            process.name: f"ipc://{self.of(process.host).directory}/{number}.sock"
            for number, process in enumerate(planned)
        }

    def routes(self, host: str | None, planned: Sequence[PlannedProcess]) -> dict[str, str]:
        """The ``tcp://`` address of every process that is not on ``host``, by its endpoint."""
        if self.coordinator is None:
            return {}
        routes = {} if host is None else {self.coordinator_endpoint: self.coordinator}
        endpoints = self.endpoints(planned)
        for each in {None, *self.others} - {host}:
            there = [process for process in planned if process.host == each]
            for process, address in zip(there, self.of(each).listening, strict=True):
                routes[endpoints[process.name]] = address
        return routes
