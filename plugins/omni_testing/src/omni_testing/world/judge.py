"""Invariants of every world."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from omni_core.api import (
    InvalidRequestError,
    OmniError,
    OverloadedError,
    ProcessSpec,
    RequestAbortedError,
    RequestFailedError,
    RequestTimeoutError,
)
from omni_core.runtime_api import ANSWER_SECONDS, MOST_INPUT_CHUNKS, StreamEvent
from omni_testing.world.host import SMALL

if TYPE_CHECKING:
    from omni_testing.world.simulation import Client, World

DETECTION = 0.02
"""Seconds until the runner knows of a death."""

TURNS = 0.01
"""Seconds that the runner may be late."""


def launch(world: World, spec: ProcessSpec) -> None:
    """One life at a time, and no more restarts than the policy allows."""
    same = [each for each in world.processes if each.spec.name == spec.name]
    world.expect(not any(each.is_alive for each in same), f"{spec.name} is launched while its predecessor lives")
    begin = world.clock.now - world.policy.window
    deaths = [poison for when, name, _, poison, _ in world.deaths if when > begin and name == spec.name]
    # With retries, a request that was there twice counts as the cause too.
    causes = len(deaths) if world.retries else len(deaths) - deaths.count(None)
    lately = sum(1 for each in same if each.launched_at > begin)
    most = world.policy.limit + causes + 1  # and one trial, or the first start
    world.expect(lately <= most, f"{spec.name} was launched {lately} times in {world.policy.window} s")


def event(world: World, client: Client, event: StreamEvent) -> None:
    """Chunks come in order, each once, and before the result of their stage."""
    client.was_read = True
    plan = client.plan
    world.expect(not client.is_over, f"{client.name} hears of {event.stage} after its end")
    if event.final:
        world.expect(event.stage not in client.results, f"{client.name} gets two results of {event.stage}")
        client.results[event.stage] = event.data
        wanted = plan.chunks.get(event.stage, 0)
        got = client.chunks.get(event.stage, 0)
        world.expect(got == wanted, f"{client.name} got {got} of {wanted} chunks of {event.stage}")
    else:
        number = client.chunks.get(event.stage, 0)
        world.expect(
            event.data["number"] == number,
            f"{client.name} got chunk {event.data['number']} of {event.stage}, {number} was due",
        )
        client.chunks[event.stage] = number + 1


def sent(world: World, client: Client) -> None:
    """No more chunks of an input wait than may, and none is told as taken that was not."""
    taken, heard = client.opened.chunks_taken, world.heard.get(client.name, 0)
    world.expect(taken <= heard, f"{client.name} is told that {taken} chunks were taken, {heard} were")
    waiting = len(client.sent_at) - taken
    most = SMALL["omni_core.coordinator.input_stream.MOST_INPUT_CHUNKS"] if world.is_small else MOST_INPUT_CHUNKS
    world.expect(waiting <= most, f"{client.name} has {waiting} chunks on their way")


def in_time(world: World, client: Client, number: int) -> None:
    """A chunk was taken in time, or its request has ended."""
    state = world.coordinator.state(client.name)
    is_over = state is None or state.value not in ("pending", "running")
    late = f"chunk {number} of {client.name} was not taken in time, and the request goes on"
    world.expect(is_over or client.opened.chunks_taken > number, late)


def end(world: World, client: Client) -> None:
    """A request ends with its results, or with an error that it or something that happened is the cause of."""
    plan, error, name = client.plan, client.error, client.name
    for when, process, _, _, held in world.deaths if world.retries == 0 else ():
        late = client.over - when
        world.expect(name not in held or late < 1.0, f"{name} ended {late:.1f} s after {process}, which held it, died")
    if error is None:
        got = {stage: data["value"] for stage, data in client.results.items() if stage != "task"}
        wanted = {stage: plan.value(stage) for stage in plan.terminals}
        world.expect(got == wanted, f"{name} got {got}, not {wanted}")
        world.expect(not plan.kills and not plan.fails and not plan.hangs, f"{name} completed, though it never may")
        return
    if isinstance(error, RequestTimeoutError) and "a chunk of its input" in str(error):
        is_late = client.over - client.sent_at[0] >= (client.chunk_timeout or math.inf)
        world.expect(is_late, f"no chunk of {name} was late: {error}")
        return
    if isinstance(error, RequestTimeoutError):
        late = client.over - client.begun - (client.request.timeout or 0.0)
        world.expect(client.request.timeout is not None and late > -TURNS, f"{name} had time left: {error}")
        world.expect(late < ANSWER_SECONDS + TURNS, f"{name} ended {late:.2f} s after its deadline")
    elif isinstance(error, RequestFailedError):
        _failed(world, client, error)
    elif isinstance(error, OverloadedError):
        world.expect(world.max_in_flight == 3, f"{name} was refused: {error}")
    elif isinstance(error, InvalidRequestError):
        deliberate = plan.kills or plan.balance or client.request.timeout is not None
        world.expect(bool(deliberate), f"{name} was refused: {error}")
    else:
        aborted = (client.aborted and not isinstance(error, OmniError)) or isinstance(error, RequestAbortedError)
        world.expect(aborted and client.aborted, f"{name} ended with {error!r}")


def _failed(world: World, client: Client, error: RequestFailedError) -> None:
    plan, name = client.plan, client.name
    if plan.balance and error.stage is None and error.error_type in ("SystemExit", "InvalidRequestError"):
        return
    groups = [{stage.name for stage in stages} for stages in world.pipeline.groups]
    near = [stages for stages in groups if stages & set(plan.stages)]
    is_near = world.is_unclear or any(error.stage in stages for stages in near)
    world.expect(error.stage is not None and is_near, f"{name}: {error!r} names no stage that it needs")
    if error.error_type in ("ValueError", "InvalidRequestError"):
        world.expect(error.stage in plan.fails, f"{name}: {error!r}")
        return
    if error.error_type == "StageFailedError":
        world.expect(bool(world.deaths), f"{name}: {error!r}")
        return
    if error.error_type == "RelayError" and (world.deaths or plan.fails):
        return  # its sender has failed it as well, and freed the slot; that message may come later
    world.expect(error.error_type == "ProcessDied", f"{name}: {error!r}")
    since = [death for death in world.deaths if death[0] >= client.begun - DETECTION]
    mine = [death for death in since if world.is_unclear or death[2] & set(plan.stages)]
    world.expect(bool(mine), f"{name} failed by the death of a process in which it had nothing: {error}")
    poisonous = [other for other in world.clients if other.plan.kills]
    is_innocent = not (plan.kills or client.was_read or client.has_sent) and world.retries > 0 and len(poisonous) < 2
    if is_innocent:
        others = {poison for _, _, _, poison, _ in mine}
        world.expect(
            None in others or client.opened is not None,
            f"{name} failed though others were the cause of every death: {error}",
        )
        world.expect(
            len(mine) > world.retries,
            f"{name} failed after {len(mine)} deaths, it has {world.retries} retries: {error}",
        )


def nothing_is_held(world: World) -> None:
    """After the end of all requests, no process holds anything of one."""
    counts = world.coordinator.statistics()
    ended = counts["completed"] + counts["failed"] + counts["aborted"]
    world.expect(counts["running"] == 0, f"the coordinator holds {counts['running']:.0f} requests")
    world.expect(
        counts["admitted"] == ended, f"{counts['admitted']:.0f} requests were admitted, {ended:.0f} have ended"
    )
    senders = [client.name for client in world.clients if client.sending is not None and not client.sending.done()]
    world.expect(not senders, f"senders of {senders} wait for ever")
    world.expect(not world.coordinator.attempts(), "attempts run without a request")
    loads = [load for load in world.loads.values() if load.requests or load.work]
    world.expect(not loads, f"replicas are loaded without requests: {loads}")
    for process in world.processes:
        if not process.is_alive or process.worker is None:
            continue
        for name, part in process.worker.parts().items():
            held: dict[str, Any] = {key: part.statistics()[key] for key in ("in_flight", "sends_pending", "queued")}
            held["computing"] = len(part.scheduler.held)  # type: ignore[attr-defined]
            world.expect(not any(held.values()), f"stage {name} of {process.spec.name} holds {held}")
        slots = world.pools[process.address].statistics()["slots_in_use"]
        world.expect(slots == 0, f"the relay of {process.spec.name} holds {slots:.0f} slots")
    world.expect(not world.errors, f"errors were logged: {world.errors}")
