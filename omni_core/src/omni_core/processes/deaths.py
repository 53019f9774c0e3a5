"""Which requests die with a process: those of which it held something, and no others.

The survivors say what they had written to the dead process and what had arrived from it. A request is safe if, for each stage
of the dead process, nothing of it had reached that stage, or everything that the stage had to hand on has arrived. Where
this cannot be told, it counts as lost: an error is better than silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import field, frozen

from omni_core.protocol.specs import StageSpec
from omni_core.stage.requests import DONE, PAYLOAD


@frozen
class Survey:
    """What is known of some requests at the death of a process.

    Attributes:
        reached: ``(request, stage)`` of which something was written to the dead process.
        arrived: ``(request, stage of the dead process, receiving stage)`` to what has come there (see ``stage.Arrivals``).
        completed: ``(request, terminal stage)`` whose result the coordinator has.
        complete: whether every survivor has answered.
    """

    reached: set[tuple[str, str]] = field(factory=set)
    arrived: dict[tuple[str, str, str], tuple[int, object]] = field(factory=dict)
    completed: set[tuple[str, str]] = field(factory=set)
    complete: bool = True


def lost_requests(requests: Iterable[str], stages: Sequence[StageSpec], survey: Survey) -> dict[str, str]:
    """Of ``requests``, those that the process of ``stages`` (in pipeline order) held, with a stage that held each."""
    lost = {}
    for request in requests:
        holder = _holder(request, stages, survey)
        if holder is not None:
            lost[request] = holder
    return lost


def _holder(request: str, stages: Sequence[StageSpec], survey: Survey) -> str | None:
    local = {stage.name for stage in stages}
    reached: set[str] = set()
    for stage in stages:
        if not survey.complete or (request, stage.name) in survey.reached:
            reached.add(stage.name)
        if stage.name in reached:
            targets = _handed_to(request, stage, survey)
            reached.update(name for names in targets for name in names if name in local)
            if not _passed_on(request, stage, targets, local, survey):
                return stage.name
    return None


def _handed_to(request: str, stage: StageSpec, survey: Survey) -> tuple[Sequence[str], Sequence[str]]:
    """The stages that get the result of ``stage`` and those whose stream ends, as far as anybody knows."""
    for target in {*stage.next, *stage.stream_to}:
        _, chosen = survey.arrived.get((request, stage.name, target), (0, None))
        if isinstance(chosen, list):
            return chosen[0], chosen[1]
    return stage.next, stage.stream_to


def _passed_on(
    request: str,
    stage: StageSpec,
    targets: tuple[Sequence[str], Sequence[str]],
    local: set[str],
    survey: Survey,
) -> bool:
    if stage.terminal:
        return (request, stage.name) in survey.completed
    wanted = [(name, PAYLOAD) for name in targets[0]] + [(name, DONE) for name in targets[1]]
    for name, bit in wanted:
        if name in local:
            continue  # looked at as a stage of its own
        seen, _ = survey.arrived.get((request, stage.name, name), (0, None))
        if not seen & bit:
            return False
    return True
