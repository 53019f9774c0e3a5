"""The relay contract: moving one flat run of bytes from a producer's process to a consumer's.

A relay moves bytes and nothing else: it routes no request and reads no payload.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import attrs
from attrs import field, frozen

from omni_core.config.settings import read_settings
from omni_core.errors import RelayError

S = TypeVar("S", bound=attrs.AttrsInstance)


@frozen
class RelayOptions:
    """The arguments of a relay: ``RelayConfig`` resolved for one stage's process, plain data.

    Attributes:
        slot_size_mb: the size of one credit's worth of pool memory, in MiB.
        credits: how many such slots the pool holds; the pool is ``slot_size_mb * credits`` MiB and never grows.
        device: ``"cpu"`` or ``"cuda:N"``: where the transferred tensors live.
        rank, world_size: this process's place among the relay's peers, for backends that need a topology.
        namespace: a name unique to this run of the pipeline; every system-wide name a relay creates starts with it.
        owner: the name of the process that owns this relay (for messages and system-wide names).
        directory: a private (0700) folder of this run, for sockets and pool files. Removed by the parent at the end.
        host: the address at which peers reach this process, for backends that use a network.
        settings: settings of this backend alone, checked by :meth:`read_settings`.
    """

    slot_size_mb: int = 64
    credits: int = 2
    device: str = "cpu"
    rank: int = 0
    world_size: int = 1
    namespace: str = "omni"
    owner: str = "stage"
    directory: str = ""
    host: str = "127.0.0.1"
    settings: dict[str, Any] = field(factory=dict)

    @property
    def pool_bytes(self) -> int:
        """The size of the pool."""
        return self.slot_size_mb * self.credits * 2**20

    def read_settings(self, cls: type[S]) -> S:
        """``settings`` as an attrs class of the backend's.

        Raises:
            ConfigError: there is no such setting, or its value is not valid.
        """
        return read_settings(cls, self.settings, "relay")


class RelayOperation(ABC):
    """A transfer under way. ``metadata`` is plain data that travels in the control message to the other side."""

    metadata: Any

    @abstractmethod
    async def wait_for_completion(self, timeout: float | None = None) -> None:
        """Return when the operation's memory may be used again.

        For a put: the receiver has taken the bytes and the slot is free. For a get: the destination is filled. The runtime awaits gets
        only: the relay itself frees the slot of a put when it learns that the bytes were taken.

        Raises:
            RelayError: the peer died or the transfer failed.
            TimeoutError: ``timeout`` seconds passed.
        """


class Relay(ABC):
    """One process's end of a data transport. Created with :class:`RelayOptions` by the target a plugin registers.

    Buffers are flat: a contiguous tensor of the host or of the relay's :attr:`device`, or anything that offers a C-contiguous
    buffer (``memoryview``, numpy). Called from one event loop only. A relay detects by itself that a peer has died: what it
    waits for from that peer fails with :class:`~omni_core.errors.PeerDiedError`, in milliseconds and without being told.

    Optional capabilities; a relay that has them declares so:

    * ``has_empty``: :meth:`empty` returns relay memory that the producer writes straight into, then passes to ``put_async``.
    * ``has_view``: :meth:`get_view` returns a read-only view of the bytes where they lie.
    * ``bytes_outlive_sender``: bytes that were put can be read after their sender has died (files, object stores). Reading from
      a dead sender is then no error.
    """

    has_empty: ClassVar[bool] = False
    has_view: ClassVar[bool] = False
    bytes_outlive_sender: ClassVar[bool] = False

    device: str = "cpu"
    """The preferred place of buffers: payloads are gathered there before a put and arrive there after a get. ``"cuda:N"`` only where
    bytes then never touch the host.
    """

    def open(self, *, sends: bool) -> None:  # noqa: B027 - optional
        """Start what the transport needs, so that a relay that cannot work here is found before its process is ready. Called once, on
        the event loop, before anything below.

        Args:
            sends: this process will put bytes. Without, it only gets them.

        Raises:
            RelayError: it cannot work here; the message says what to install or to set.
        """

    @abstractmethod
    async def put_async(
        self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None
    ) -> RelayOperation:
        """Offer ``tensor``'s bytes. Waits (back-pressure) while the pool is full.

        ``dst_rank``: the ``rank`` of the only peer that will take them, where that is known.

        Raises:
            RelayCapacityError: the bytes can never fit the pool; the message says which setting to raise.
        """

    @abstractmethod
    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> RelayOperation:
        """Copy the bytes that ``metadata`` describes into ``dest_tensor`` (same number of bytes) and free the slot: no :meth:`cleanup`
        follows.
        """

    @abstractmethod
    def cleanup(self, request_id: str) -> None:
        """Free everything held for the request on this side: un-taken puts, un-written ``empty`` slots. Called when the request fails, is
        aborted or loses a receiver. Idempotent, also of a relay that could not be opened, and starts nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """Release every resource: mappings, descriptors, names, threads. Idempotent."""

    async def empty(self, nbytes: int, request_id: str | None = None) -> Any:
        """Writable relay memory of ``nbytes`` bytes (64-byte aligned), for ``put_async``: a C-contiguous buffer, or a flat uint8
        tensor of :attr:`device`.

        Waits while the pool is full.

        Raises:
            RelayFullError: a relay whose readers may keep their views found that waiting may never end.
        """
        raise RelayError(f"{type(self).__name__} has no empty(); has_empty says so")

    def reserve(self, nbytes: int, request_id: str | None = None) -> Any | None:
        """Like :meth:`empty`, at once; ``None`` where that would have to wait, or where the relay cannot."""
        return None

    def commit(self, memory: Any) -> Any:
        """Offer memory of :meth:`reserve`, filled; the metadata of the put. The slot is freed as after ``put_async``."""
        raise RelayError(f"{type(self).__name__} has no reserve()")

    def get_view(self, metadata: Any, request_id: str | None = None) -> memoryview:
        """A read-only view of the bytes that ``metadata`` describes; its last reference gives the slot back."""
        raise RelayError(f"{type(self).__name__} has no get_view(); has_view says so")

    def statistics(self) -> dict[str, float]:
        """Plain counters: at least ``bytes_in_use`` and ``slots_in_use`` of the pool this side owns."""
        return {}
