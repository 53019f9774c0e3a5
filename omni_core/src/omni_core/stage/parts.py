"""Stages of a composed pipeline: each sees the names and the requests of its own part, as if that were the whole pipeline.

A request keeps in ``composed`` what the client gave, so that the next part can have its own view of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any

from attrs import evolve

from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import TextChunk
from omni_core.protocol.specs import PartSpec
from omni_core.services import TOOL_CALLS
from omni_core.stage.active_requests import ActiveRequest

logger = logging.getLogger(__name__)


class Names:
    """The names of stages to a stage of ``part``: those of its part have no prefix there. ``part`` is empty in a pipeline of one part."""

    def __init__(self, part: str) -> None:
        self._prefix = f"{part}-" if part else ""

    def own(self, name: str) -> str:
        """Return the name by which the part knows a stage."""
        return name.removeprefix(self._prefix)

    def whole(self, name: Any, known: Collection[str]) -> Any:
        """Return the name that a stage has in the pipeline, for one that the part has used; ``known`` are possible stages."""
        return f"{self._prefix}{name}" if isinstance(name, str) and f"{self._prefix}{name}" in known else name

    def chooses(self, function: Callable[..., Any] | None, known: Collection[str]) -> Callable[..., Any] | None:
        """Return a function of the part, which returns names of stages, as one that returns those of the pipeline."""
        if function is None or not self._prefix:
            return function

        @wraps(function)
        def chosen(*arguments: Any) -> Any:
            names = function(*arguments)
            if isinstance(names, list | tuple | set):
                return [self.whole(name, known) for name in names]
            return self.whole(names, known)

        return chosen


class Calls:
    """Leaves calls of tools out of the text that another part streams: they are for the client.

    Args:
        formats: by stage of another part, how its text calls tools.
        services: the references of the launch spec.
    """

    def __init__(self, formats: Mapping[str, str], services: Mapping[str, str]) -> None:
        self._formats = formats
        self._read = TOOL_CALLS.given(services) if formats else None
        if formats and self._read is None:
            logger.warning("calls of tools are passed on as text: %s", TOOL_CALLS.missing("leaving them out needs"))

    def without(self, active: ActiveRequest, source: str, chunk: Any) -> Any:
        """Return a chunk without them; ``None`` if nothing is left of it."""
        if self._read is None or source not in self._formats or not isinstance(chunk, TextChunk):
            return chunk
        if source not in active.replies:
            active.replies[source] = self._read(self._formats[source])
        text, _ = active.replies[source].feed(chunk.text)
        return TextChunk(text) if text else None

    def rest(self, active: ActiveRequest, source: str) -> TextChunk | None:
        """Return what is left of the text at its end."""
        text, _ = active.replies.pop(source).finish() if source in active.replies else ("", ())
        return TextChunk(text) if text else None


def part_request(request: OmniRequest, part: PartSpec) -> OmniRequest:
    """Return a request as a part sees it: with its own parameters under its own names, and modalities that it can answer in."""
    given = request.composed or {
        "params": request.params,
        "metadata": request.metadata,
        "modalities": request.modalities,
    }
    modalities = [each for each in given["modalities"] or () if each in part.outputs]
    return evolve(
        request,
        params=_renamed(given["params"], part.params),
        metadata=_renamed(given["metadata"], part.metadata),
        modalities=modalities or None,
        composed=given,
    )


def _renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    hidden = {*names, *names.values()}
    kept = {key: value for key, value in given.items() if key not in hidden}
    return kept | {own: given[other] for own, other in names.items() if other in given}


def part_terminals(
    parts: Mapping[str, tuple[PartSpec, Callable[[OmniRequest], Any] | None]], terminals: Iterable[str]
) -> Callable[[OmniRequest], list[str] | None]:
    """Return the ``terminal_stages_fn`` of a composed pipeline: those that its parts choose, of parts that have a wanted modality.

    Args:
        parts: by name, with the ``terminal_stages_fn`` of each.
        terminals: the terminal stages of the whole.
    """
    known = list(terminals)

    def choose(request: OmniRequest) -> list[str] | None:
        chosen: list[str] = []
        for name, (part, function) in parts.items():
            own = [stage for stage in known if stage.startswith(f"{name}-")]
            if request.modalities and part.outputs and not set(request.modalities) & set(part.outputs):
                continue
            wanted = None if function is None else function(part_request(request, part))
            wanted = [wanted] if isinstance(wanted, str) else wanted
            chosen += own if wanted is None else [stage for stage in own if stage.removeprefix(f"{name}-") in wanted]
        return chosen or None

    return choose
