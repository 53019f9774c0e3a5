"""The terminal stages whose results a request is answered with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from omni_core.errors import (
    ConfigError,
    InvalidRequestError,
    guarded,
    is_interrupt,
    message_of,
    own_copy,
    traceback_of,
)
from omni_core.protocol.messages import OmniRequest


def chosen_terminals(
    terminals: Collection[str], choose: Callable[[OmniRequest], Any] | None, request: OmniRequest
) -> set[str]:
    """Return those of ``terminals`` that ``choose``, a ``terminal_stages_fn``, returns for a request; without it, all.

    Raises:
        ConfigError: it returned something else. InvalidRequestError: it failed.
    """
    if choose is None:
        return set(terminals)
    failure: ConfigError | InvalidRequestError
    try:
        names = choose(request)
        chosen = set(terminals) if names is None else {names} if isinstance(names, str) else set(names)
        if chosen and chosen <= set(terminals):
            return {each for each in terminals if each in chosen}
        shown = guarded(lambda: repr(names))
        failure = ConfigError(f"terminal_stages_fn returned {shown}; it must be a subset of {sorted(terminals)}")
    except BaseException as error:
        if is_interrupt(error):
            raise
        deliberate = own_copy(error)
        if isinstance(deliberate, InvalidRequestError):
            failure = deliberate
        else:
            failure = InvalidRequestError(f"terminal_stages_fn failed: {message_of(error, with_type=True)}")
            failure.add_note(traceback_of(error))
    raise failure  # not above: it would have the other one as its context
