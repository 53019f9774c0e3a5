"""The exceptions that omni raises on purpose. Each message says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class OmniError(Exception):
    """Base of every error that omni raises deliberately."""


class ConfigError(OmniError):
    """A pipeline's configuration is invalid; the message names the full path, such as ``stages[decoder].tp_size``."""


class PluginError(OmniError):
    """A component was asked for that no loadable plugin provides."""


class InvalidRequestError(OmniError):
    """The request itself is at fault: a corrupt file, an unknown speaker, a prompt that is too long.

    Raised at admission, or in a stage; then a caller gets it with ``request_id`` and ``stage``.
    """

    request_id: str | None = None
    stage: str | None = None


class RequestFailedError(OmniError):
    """A request failed inside the pipeline.

    ``stage`` is where it failed (``None``: outside the stages), ``error_type`` the name of the exception raised there.
    """

    def __init__(self, request_id: str, stage: str | None, error_type: str, message: str) -> None:
        self.request_id: str | None = request_id
        self.stage = stage
        self.error_type = error_type
        self.message = message
        where = f"stage {stage!r}" if stage else "the coordinator"
        super().__init__(f"request {request_id} failed in {where}: {error_type}: {message}")


class InvalidRequestInStageError(InvalidRequestError, RequestFailedError):
    """A stage found the request itself at fault. It is both, so that a caller may catch either."""


class RequestTimeoutError(RequestFailedError):
    """A request was not finished within its ``timeout``; the message names the stages that had it."""


class RequestAbortedError(OmniError):
    """The request was aborted before it completed."""


class OverloadedError(OmniError):
    """The pipeline holds as many requests as it may. ``retry_after`` is a hint in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class CodecError(OmniError):
    """A value cannot be sent, or received bytes cannot be decoded; the message names the path inside the payload."""


class RelayError(OmniError):
    """A transfer of bytes failed: a dead peer, a full pool, a time-out."""


class PeerDiedError(RelayError):
    """The process that held the bytes has ended. Not the request's fault: it may be run again (``retries``)."""


class RelayFullError(RelayError):
    """The pool may never have room: what would be waited for may itself wait for these bytes. They can go another way."""


class TransportError(OmniError):
    """A control message could not be sent: the peer does not read, or the endpoint is not allowed."""


class StartupError(OmniError):
    """A pipeline did not become ready; the message names the stage and shows its last lines of output."""


class StageFailedError(OmniError):
    """A stage has died too often and is not restarted any more; ``stage`` is its name."""

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        super().__init__(f"stage {stage!r} has failed and is not restarted any more: {reason}")


def did_you_mean(name: object, known: Iterable[str], *, listing: str = "there are") -> str:
    """Return the end of a message about an unknown ``name``: the nearest of the ``known`` names, or a list of all of them."""
    names = list(known)
    near = get_close_matches(str(name), names, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; {listing}: {', '.join(names) or 'none'}"
