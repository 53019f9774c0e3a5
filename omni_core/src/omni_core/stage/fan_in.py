"""Fan-in: holds a request's payloads until every active upstream stage has sent its own, then merges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omni_core.errors import ConfigError
from omni_core.protocol.messages import StagePayload

WaitForFunction = Callable[[str, str, StagePayload], "Sequence[str] | None"]
MergeFunction = Callable[[dict[str, StagePayload]], StagePayload]


class FanIn:
    """One request's inputs. Once they are complete they stay it: what comes later, of a stage that was not chosen, is dropped.

    Attributes:
        is_complete: the merged payload was returned, and no payload is kept any more.

    Args:
        wait_for: every stage that may contribute.
        wait_for_fn: ``(request_id, from_stage, payload) -> subset | None``: the active subset, or ``None`` while this
            payload does not determine it.
        merge_fn: ``({stage: payload}) -> payload`` over the active subset, in ``wait_for`` order.
    """

    def __init__(
        self, stage: str, wait_for: Sequence[str], wait_for_fn: WaitForFunction | None, merge_fn: MergeFunction
    ) -> None:
        self._stage = stage
        self._wait_for = wait_for
        self._wait_for_fn = wait_for_fn
        self._merge_fn = merge_fn
        self._payloads: dict[str, StagePayload] = {}
        self.is_complete = False
        self._active: tuple[str, ...] | None = None if wait_for_fn else tuple(wait_for)

    def add(self, from_stage: str, payload: StagePayload) -> StagePayload | None:
        """Take one payload in. Returns the merged one when the active subset is complete, once.

        Raises:
            ConfigError: an unexpected sender, or a subset that ``wait_for`` does not contain.
        """
        if from_stage not in self._wait_for:
            raise ConfigError(f"stages[{self._stage}].wait_for does not name {from_stage!r}, which sent a payload")
        if self.is_complete:
            return None
        self._payloads[from_stage] = payload
        if self._active is None and self._wait_for_fn is not None:
            self._choose(self._wait_for_fn(payload.request_id, from_stage, payload))
        if self._active is None and len(self._payloads) == len(self._wait_for):
            raise ConfigError(
                f"stages[{self._stage}].wait_for_fn returned None for every payload; one of them must tell what to wait for"
            )
        if self._active is None or not self._payloads.keys() >= set(self._active):
            return None
        self.is_complete = True
        payloads, self._payloads = self._payloads, {}
        return self._merge_fn({name: payloads[name] for name in self._wait_for if name in self._active})

    @property
    def missing(self) -> list[str]:
        """The stages whose payload is still waited for, as far as this is known by now."""
        if self.is_complete:
            return []
        return [name for name in self._active or self._wait_for if name not in self._payloads]

    def _choose(self, subset: Sequence[str] | None) -> None:
        if subset is None:
            return
        chosen = [subset] if isinstance(subset, str) else subset
        if (
            not isinstance(chosen, list | tuple | set)
            or not chosen
            or not all(name in self._wait_for for name in chosen)
        ):
            raise ConfigError(
                f"stages[{self._stage}].wait_for_fn returned {subset!r}; it must be a non-empty subset of {list(self._wait_for)}"
            )
        self._active = tuple(chosen)
