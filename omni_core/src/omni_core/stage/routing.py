"""Routes: the targets of a stage's outputs, by its config and the pipeline's functions. No IO, no state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from attrs import define

from omni_core.errors import ConfigError
from omni_core.protocol.messages import StagePayload
from omni_core.protocol.specs import StageSpec
from omni_core.references import load
from omni_core.stage.active_requests import ActiveRequest
from omni_core.stage.parts import Names


@define
class Route:
    """The targets of one request's result.

    Attributes:
        payloads: each target with the payload for it, projected.
        streams: the stages whose stream from this one ends.
        handed_to: the names of both, for the receivers, where a function of the pipeline chose them.
        left_out: the terminal stages that can get nothing, as ``route_fn`` did not choose what leads there.
    """

    payloads: list[tuple[str, StagePayload]]
    streams: list[str]
    handed_to: list[list[str]] | None
    left_out: list[str]


class Routing:
    """The routes of one stage: its ``route_fn``, ``stream_done_to_fn`` and projections, applied and checked.

    Args:
        local: the stages of its own process, which get a payload by reference.
    """

    def __init__(self, spec: StageSpec, local: Collection[str]) -> None:
        self._spec = spec
        self._local = local
        self._names = Names(spec.part)
        self._route_fn = self._names.chooses(function(spec.route_fn), spec.next)
        self._stream_done_to_fn = self._names.chooses(function(spec.stream_done_to_fn), spec.stream_to)
        self._projections = {target: load(reference) for target, reference in spec.project_payload.items()}

    def of_chunk(self, active: ActiveRequest, target: str | None) -> list[str]:
        """Return the stages that a chunk goes to, which its scheduler has put out for ``target`` or for all.

        Raises:
            ConfigError: the chunk has nowhere to go, or ``stream_to`` does not name its target.
        """
        allowed = self._allowed(target)
        return [each for each in allowed if self._needs(active, each)] if self._spec.answers else allowed

    def _allowed(self, target: str | None) -> list[str]:
        allowed = self._spec.stream_to
        if target is None and (self._spec.chunks_to is not None or self._spec.terminal):
            return self._spec.chunks_to or []
        if target is None and allowed:
            return allowed
        target = self._names.whole(target, allowed)
        if target in allowed:
            return [target]
        if target is None:
            raise ConfigError(
                f"stage {self._spec.name!r} streams chunks, but it is not terminal and stages[{self._spec.name}].stream_to "
                "names no stage that could get them"
            )
        raise ConfigError(
            f"a stream chunk is for {target!r}, which stages[{self._spec.name}].stream_to does not name; "
            f"it names {list(allowed)}"
        )

    def of_result(self, active: ActiveRequest, payload: StagePayload) -> Route:
        """Return where a result goes, with the payload of each target.

        Raises:
            ConfigError: a function returned stages that the config does not allow, or left out one that got chunks.
        """
        name = self._spec.name
        streams: Sequence[str] = self._spec.stream_to
        if self._stream_done_to_fn is not None:
            chosen = self._stream_done_to_fn(payload.request_id, payload)
            streams = _subset(f"stages[{name}].stream_done_to_fn", chosen, self._spec.stream_to, may_be_empty=True)
            for target in active.chunks_sent:
                if target not in streams:
                    raise ConfigError(
                        f"stage {name!r} streamed chunks to {target!r}, which stages[{name}].stream_done_to_fn leaves out: "
                        f"it returned {chosen!r}, so that this stream would never end"
                    )
        targets: Sequence[str] = self._spec.next
        if self._route_fn is not None:
            chosen = self._route_fn(payload.request_id, payload)
            targets = _subset(f"stages[{name}].route_fn", chosen, self._spec.next)
        left_out = [end for end, leading in self._spec.leads_to.items() if not {*leading} & {*targets}]
        is_chosen = self._route_fn is not None or self._stream_done_to_fn is not None
        if self._spec.answers:
            targets = [each for each in targets if self._needs(active, each)]
            streams = [each for each in streams if self._needs(active, each)]
            is_chosen = is_chosen or [*targets, *streams] != [*self._spec.next, *self._spec.stream_to]
        handed_to = [list(targets), list(streams)] if is_chosen else None
        return Route(self._projected(active, payload, targets), list(streams), handed_to, left_out)

    def _needs(self, active: ActiveRequest, target: str) -> bool:
        """Return whether a request needs a stage of another part: what it wants is answered there, or nowhere."""
        composed = active.request.composed if active.request is not None else None
        wanted = {*(composed["modalities"] or ())} if composed is not None else {*()}
        here, elsewhere = self._spec.answers.get(target, ((), ()))
        return not wanted.intersection(elsewhere) or bool(wanted.intersection(here))

    def _projected(
        self, active: ActiveRequest, payload: StagePayload, targets: Sequence[str]
    ) -> list[tuple[str, StagePayload]]:
        """Project the payload for each target. Local ones get a container each, the others one together; all share its tensors."""
        projected = []
        seen: dict[int, StagePayload | None] = {}  # the payload of the stages that are not local
        for target in targets:
            projection = self._projections.get(target)
            each = payload if projection is None else active.payload(projection(payload))
            if len(targets) > 1 and isinstance(each.data, dict | list):
                container, is_local = id(each.data), target in self._local
                shared = None if is_local else seen.get(container)
                if shared is not None:
                    each = shared
                elif container in seen:
                    each = StagePayload(each.request_id, each.request, each.data.copy())
                seen[container] = seen.get(container) if is_local else each
            projected.append((target, each))
        return projected


def function(reference: str | None) -> Callable[..., Any] | None:
    """Load a function of the pipeline's config, if it names one."""
    return None if reference is None else load(reference)


def _subset(path: str, names: Any, allowed: Collection[str], *, may_be_empty: bool = False) -> list[str]:
    chosen = [names] if isinstance(names, str) else names
    if (
        not isinstance(chosen, list | tuple)
        or not all(name in allowed for name in chosen)
        or not (chosen or may_be_empty)
        or len(set(chosen)) < len(chosen)
    ):
        raise ConfigError(f"{path} returned {names!r}; it must return stages out of {list(allowed)}, each once")
    return list(chosen)
