"""Deadlines of the requests of one stage: when each needs its next output so that somebody who listens hears no pause.

A :class:`DeadlinePolicy` gives deadlines; schedulers ask it for their order. :class:`Deadlines` knows what a stage can know by itself: when
a request came, when its first output went out, and the seconds of sound that have gone out since.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from attrs import define, field

from omni_core.api import ConfigError, InvalidRequestError, OmniRequest, load
from omni_core.runtime_api import message_of

FIRST_WITHIN = 0.5
"""Seconds from its arrival in a stage in which a request wants its first output, unless its ``metadata["first_within"]`` says otherwise."""

TEXT_SECONDS = 0.1
"""Seconds of reading in one token of text. Text is read faster than it is spoken, so this is less than a word."""


@runtime_checkable
class DeadlinePolicy(Protocol):
    """Says by when each request of a stage needs its next output. Schedulers serve the earliest first.

    One thread calls it. Times are seconds of one clock that only grows, such as ``time.monotonic()``. A policy may give any order by the
    moments that it returns: they are compared with each other and with now. Each rank of a tensor parallel stage has its own, is called
    with the same arguments, and must answer the same: a policy reads no clock and draws no random numbers.
    """

    def begin(self, request_id: str, request: OmniRequest, now: float) -> None:
        """Take in a request that has come.

        Raises:
            InvalidRequestError: what it says of its deadlines cannot be read.
        """
        ...

    def emitted(self, request_id: str, seconds: float, now: float) -> None:
        """Take in an output that goes out: ``seconds`` of sound, or of reading."""
        ...

    def due(self, request_id: str, now: float) -> float:
        """Return the moment at which the request needs its next output."""
        ...

    def may_wait(self, request_id: str, now: float) -> bool:
        """Return whether the request may be held back for others: nothing of it has gone out, and it has not waited too long."""
        ...

    def starts(self, request_id: str, made: float, needed: float, now: float) -> float:
        """Return the moment from which the first sound of a request may go out; asked again until it has come.

        Args:
            made: when it was ready.
            needed: seconds after that at which who begins to play hears no pause, as the stage predicts from the requests before
                it; negative where there is time left over.
        """
        ...

    def end(self, request_id: str) -> None:
        """Forget a request; an unknown one is ignored."""
        ...


@define
class _Playback:
    """One request. ``until``: the moment up to which the client has something to play; ``None`` before the first output."""

    came: float
    first_within: float
    deadline: float | None
    until: float | None = None


@define
class Deadlines:
    """Serve the request whose client runs out of sound first.

    A client plays from the first output on, at real time; when nothing is left it waits, so what comes later is due later. A request
    without any output is due ``first_within`` seconds after it came. Once that is missed it stays behind those that are being heard and
    would run dry within ``margin`` seconds, because a later beginning is heard less than a pause; after ``patience`` seconds it has its
    turn before them, so that none starves.

    A text request may have ``metadata["deadline"]``: the seconds from its arrival by which all of its reply is wanted.

    The first sound is kept for as long as a pause is to be expected after it, and for ``slack`` seconds more; but not beyond ``patience``.

    Args:
        margin: seconds.
        patience: seconds.
        slack: seconds.
    """

    margin: float = 0.25
    patience: float = 30.0
    slack: float = 0.05
    _playbacks: dict[str, _Playback] = field(factory=dict)

    def begin(self, request_id: str, request: OmniRequest, now: float) -> None:
        """See :class:`DeadlinePolicy`."""
        first = _seconds(request, "first_within")
        within = FIRST_WITHIN if first is None else first
        self._playbacks[request_id] = _Playback(now, within, _seconds(request, "deadline"))

    def emitted(self, request_id: str, seconds: float, now: float) -> None:
        """See :class:`DeadlinePolicy`."""
        playback = self._playbacks[request_id]
        playback.until = max(now, playback.until or now) + seconds

    def due(self, request_id: str, now: float) -> float:
        """See :class:`DeadlinePolicy`."""
        playback = self._playbacks[request_id]
        if playback.deadline is not None:
            return playback.came + playback.deadline
        if playback.until is not None:
            return playback.until
        return min(max(playback.came + playback.first_within, now + self.margin), playback.came + self.patience)

    def may_wait(self, request_id: str, now: float) -> bool:
        """See :class:`DeadlinePolicy`."""
        playback = self._playbacks[request_id]
        return playback.until is None and now < playback.came + self.patience

    def starts(self, request_id: str, made: float, needed: float, now: float) -> float:
        """See :class:`DeadlinePolicy`."""
        latest = self._playbacks[request_id].came + self.patience
        return min(made + max(0.0, needed + self.slack), max(made, latest))

    def end(self, request_id: str) -> None:
        """See :class:`DeadlinePolicy`."""
        self._playbacks.pop(request_id, None)


def policy_of(reference: str | None) -> DeadlinePolicy | None:
    """Make the policy that a stage's ``policy`` names, ``package.module:attribute``; without one, requests are served in their order.

    Raises:
        ConfigError: it cannot be imported, or makes no policy.
    """
    if reference is None:
        return None
    advice = f"policy: {reference!r} must name what makes a policy without arguments, such as omni_torch.vocoder.deadlines:Deadlines"
    try:
        policy = load(str(reference))()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{advice}; {message_of(error, with_type=True)}") from error
    if not isinstance(policy, DeadlinePolicy):
        methods = (name for name in vars(DeadlinePolicy) if not name.startswith("_"))
        missing = ", ".join(name for name in methods if not callable(getattr(policy, name, None)))
        raise ConfigError(f"{advice}; it made a {type(policy).__name__}, which lacks {missing}")
    return policy


def _seconds(request: OmniRequest, name: str) -> float | None:
    """Return a number of seconds of a request's metadata.

    Raises:
        InvalidRequestError: it is no number above 0.
    """
    value = request.metadata.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidRequestError(f"metadata.{name}: must be a number of seconds, 0 or more, is {value!r}")
    return float(value)
