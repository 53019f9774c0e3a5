"""Request groups: a stage computes one request as several parts, one for each role, and hands on all their results together. No IO.

The parts share everything that a request has outside the stage: its place among the requests in flight, its deadline, its replica and
its abort. So classifier-free guidance needs no second request, and a part cannot be lost on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, evolve, field

from omni_core.errors import ConfigError, InvalidRequestError, RequestTooLargeError, message_of
from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage

ExpandFunction = Callable[[StagePayload], "Mapping[str, Any] | None"]


@define
class _Group:
    """The parts of one request, ``{part's id: role}``, and the results so far by role."""

    roles: dict[str, str]
    results: dict[str, Any] = field(factory=dict)


class Groups:
    """The request groups of one stage.

    Attributes:
        used: whether requests may have parts; without, nothing here need be asked.

    Args:
        expand_fn: ``(payload) -> {role: payload or data} | None``: the parts of a request; ``None``, or no function: it is computed
            as it is.
    """

    def __init__(self, stage: str, expand_fn: ExpandFunction | None) -> None:
        self._stage = stage
        self.used = expand_fn is not None
        self._expand_fn = expand_fn
        self._groups: dict[str, _Group] = {}
        self._requests: dict[str, str] = {}

    def expand(self, message: IncomingMessage) -> list[IncomingMessage]:
        """Return what the scheduler gets in place of a request's payload.

        A part's id is ``REQUEST#ROLE``. It has the parameters of the payload that ``expand_fn`` made for it, or those of the request.

        Raises:
            ConfigError: ``expand_fn`` returned something else than parts by role.
        """
        payload: StagePayload = message.data
        parts = self._expand_fn(payload) if self._expand_fn is not None else None
        if parts is None:
            return [message]
        if not isinstance(parts, Mapping) or not parts or not all(isinstance(role, str) and role for role in parts):
            raise ConfigError(
                f"stages[{self._stage}].expand_fn returned {parts!r}; it must be a payload for each role, {{'name': payload}}, or None"
            )
        roles = {f"{message.request_id}#{role}": role for role in parts}
        self._groups[message.request_id] = _Group(roles)
        self._requests |= dict.fromkeys(roles, message.request_id)
        return [self._part(message, part_id, parts[role]) for part_id, role in roles.items()]

    def collect(self, message: OutgoingMessage) -> OutgoingMessage | None:
        """Return what the stage hands on for an output of its scheduler; ``None`` while other parts of the group compute.

        A chunk of a part keeps its data, and its metadata names the ``role``. A part's error is that of the whole
        request, and names the role. The result is ``{role: data}``, in the order of ``expand_fn``.
        """
        request_id = self._requests.get(message.request_id) if self._requests else None
        if request_id is None:
            return message
        group = self._groups.get(request_id)
        if group is None:  # it ends at this moment, in another thread
            return None
        role = group.roles[message.request_id]
        if message.type == "stream":
            return evolve(message, request_id=request_id, metadata={**(message.metadata or {}), "role": role})
        if message.type == "error":
            return evolve(message, request_id=request_id, data=_error_of_part(role, message.data))
        group.results[role] = message.data.data if issubclass(type(message.data), StagePayload) else message.data
        if len(group.results) < len(group.roles):
            return None
        return evolve(message, request_id=request_id, data={name: group.results[name] for name in group.roles.values()})

    def request_of(self, part_id: str) -> str:
        """Return the request that a part belongs to; of any other id, the id itself."""
        return self._requests.get(part_id, part_id)

    def known_as(self, request_id: str) -> list[str]:
        """Return the ids by which the scheduler knows a request."""
        group = self._groups.get(request_id)
        return [request_id] if group is None else list(group.roles)

    def end(self, request_id: str) -> list[str]:
        """Forget a request. Returns the ids by which the scheduler knows it."""
        group = self._groups.pop(request_id, None)
        if group is None:
            return [request_id]
        for part_id in group.roles:
            self._requests.pop(part_id, None)
        return list(group.roles)

    def _part(self, message: IncomingMessage, part_id: str, value: Any) -> IncomingMessage:
        own = value.request if isinstance(value, StagePayload) else message.data.request
        data = value.data if isinstance(value, StagePayload) else value
        return evolve(message, request_id=part_id, data=StagePayload(part_id, own, data), request=own.without_inputs())


def _error_of_part(role: str, error: BaseException) -> BaseException:
    if issubclass(type(error), MemoryError):  # its process counts them
        return error
    if issubclass(type(error), InvalidRequestError):
        kind = RequestTooLargeError if issubclass(type(error), RequestTooLargeError) else InvalidRequestError
        return kind(f"in the part {role!r}: {message_of(error)}")
    named = RuntimeError(f"in the part {role!r}: {message_of(error, with_type=True)}")
    named.__cause__ = error
    return named
