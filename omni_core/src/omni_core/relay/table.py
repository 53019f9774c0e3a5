"""The relays of one process, by name and by the peers that they reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from omni_core.errors import RelayError
from omni_core.protocol.specs import RelaySpec
from omni_core.references import load
from omni_core.relay.base import Relay, RelayOptions


class Relays:
    """The relays of one process. They are built at its start, so that one that cannot work here fails then.

    Args:
        specs: by name, every relay that this process sends or is sent by.
        towards: endpoint of a peer to the name of the relay that reaches it.
        spare: by name, relays that are built when they are first needed: when a peer moves to another machine.
    """

    def __init__(
        self, specs: Mapping[str, RelaySpec], towards: Mapping[str, str], spare: Mapping[str, RelaySpec] | None = None
    ) -> None:
        self._towards = dict(towards)
        self._spare = dict(spare or {})
        self._relays: dict[str, Relay] = {name: _built(spec) for name, spec in specs.items()}

    def place(self, endpoint: str, name: str | None) -> None:
        """From now on, the relay called ``name`` reaches a peer; ``None``: no relay does."""
        if name is not None:
            self._towards[endpoint] = name
        else:
            self._towards.pop(endpoint, None)

    def towards(self, endpoint: str) -> tuple[str, Relay]:
        """The relay that reaches a peer, and its name.

        Raises:
            RelayError: there is none.
        """
        name = self._towards.get(endpoint)
        if name is None:
            raise RelayError(
                f"this process was started without a relay that reaches {endpoint}, but a large payload must go there"
            )
        return name, self.named(name)

    def device_towards(self, endpoint: str) -> str:
        """The device on which to gather payloads for a peer."""
        name = self._towards.get(endpoint)
        return "cpu" if name is None else self.named(name).device

    def named(self, name: str) -> Relay:
        """The relay of that name. Raises RelayError: this process has none."""
        relay = self._relays.get(name)
        if relay is None and name in self._spare:
            relay = self._relays[name] = _built(self._spare[name])
        if relay is None:
            raise RelayError(f"bytes arrived by the relay {name!r}, which this process was started without")
        return relay

    def cleanup(self, request_id: str) -> None:
        for relay in self._relays.values():
            relay.cleanup(request_id)

    def statistics(self) -> dict[str, float]:
        """The counters of all, added up; empty if there are none."""
        total: Counter[str] = Counter()
        for relay in self._relays.values():
            for name, count in relay.statistics().items():
                total[name] += count  # type: ignore[assignment]  # floats count too
        return dict(total)

    def close(self) -> None:
        for relay in self._relays.values():
            relay.close()


def _built(spec: RelaySpec) -> Relay:
    relay: Relay = load(spec.target)(RelayOptions(**spec.options))
    return relay
