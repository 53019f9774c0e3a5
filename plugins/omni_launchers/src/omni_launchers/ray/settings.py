"""The settings of the launcher: ``launcher.settings``."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from omni_core.api import ConfigError, did_you_mean

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@frozen
class Settings:
    """The use that a run makes of a Ray cluster.

    Attributes:
        address: of the cluster, ``HOST:PORT`` of its head; ``auto``: the one of ``RAY_ADDRESS``, else the one that runs on this machine.
        strategy: how bundles are spread over nodes: ``PACK``, ``SPREAD``, ``STRICT_PACK`` or ``STRICT_SPREAD``.
        ready_seconds: the time that Ray has to reserve everything.
        autoscaling: nodes may still join, so a bundle that no node could ever hold is waited for as well.
        cpus: those that a process claims whose stages set none.
        runtime_env: Ray's runtime environment of the stages on other nodes: ``env_vars``, ``working_dir``, ``pip``.
    """

    address: str = "auto"
    strategy: str = "PACK"
    ready_seconds: float = 60.0
    autoscaling: bool = False
    cpus: float = 0.1
    runtime_env: dict[str, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(
                f"launcher.settings.strategy: there is no {self.strategy!r}{did_you_mean(self.strategy, STRATEGIES)}"
            )
        for name in ("ready_seconds", "cpus"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"launcher.settings.{name}: must be positive, is {getattr(self, name):g}")
        if self.address.startswith("ray://"):
            raise ConfigError(
                f"launcher.settings.address: {self.address} is for Ray's client; the runner must be on a node of the cluster: "
                "give HOST:PORT of its head, or auto"
            )
