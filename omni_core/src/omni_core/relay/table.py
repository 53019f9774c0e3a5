"""The relays of one process, by name and by the peers that they reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from omni_core.errors import ConfigError, OmniError, RelayError, contained, message_of
from omni_core.protocol.specs import RelaySpec
from omni_core.references import load
from omni_core.relay.base import Relay, RelayOptions


class Relays:
    """The relays of one process, each built when :meth:`open` or a transfer first needs it.

    Args:
        specs: by name, every relay that this process sends or is sent by.
        towards: endpoint of a peer to the name of the relay that reaches it.
        spare: by name, relays that are built when they are first needed: when a peer moves to another machine.
    """

    def __init__(
        self, specs: Mapping[str, RelaySpec], towards: Mapping[str, str], spare: Mapping[str, RelaySpec] | None = None
    ) -> None:
        self._towards = dict(towards)
        self._specs = {**(spare or {}), **specs}
        self._at_start = list(specs)
        self._relays: dict[str, Relay] = {}

    def open(self) -> None:
        """Build and open the relays of this process, so that one that cannot work here is found at its start.

        Raises:
            RelayError: one cannot, with its name.
        """
        for name in self._at_start:
            self.named(name)

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
        if relay is None:
            if name not in self._specs:
                raise RelayError(f"bytes arrived by the relay {name!r}, which this process was started without")
            relay = self._relays[name] = self._built(name, self._specs[name])
        return relay

    def _built(self, name: str, spec: RelaySpec) -> Relay:
        try:
            relay: Relay = load(spec.target)(RelayOptions(**spec.options))
            if isinstance(relay, Relay):  # any class may be one by its methods alone
                relay.open(sends=name in self._towards.values())
        except ConfigError:
            raise
        except BaseException as error:
            what = message_of(error, with_type=not issubclass(type(error), OmniError))
            raise RelayError(f"the relay {name!r} cannot work here: {what}") from error
        return relay

    def cleanup(self, request_id: str) -> None:
        for name, relay in self._relays.items():
            contained(partial(relay.cleanup, request_id), None, f"`cleanup` of the relay {name!r}")

    def statistics(self) -> dict[str, float]:
        """The counters of all, added up; empty if there are none."""
        total: Counter[str] = Counter()
        for each, relay in self._relays.items():
            counted: dict[str, float] = contained(relay.statistics, {}, f"`statistics` of the relay {each!r}")
            for name, count in counted.items():
                total[name] += count  # type: ignore[assignment]  # floats count too
        return dict(total)

    def close(self) -> None:
        for name, relay in self._relays.items():
            contained(relay.close, None, f"`close` of the relay {name!r}")
