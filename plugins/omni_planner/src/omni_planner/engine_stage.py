"""An engine in simulated time: its steps are planned by the engine's own :class:`omni_torch.engine.batching.Batcher`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import define, field

from omni_core.errors import ConfigError
from omni_core.model_runner import ARRequest, SamplingParams
from omni_core.model_runner.types import KVLayout
from omni_core.protocol.messages import OmniRequest
from omni_planner.profile import Costing, Seconds, StageProfile, Visit
from omni_planner.requests import Flight
from omni_planner.stages import CHUNK, Inputs, Message, Output, Settings, SimulatedStage, Step, Watch, streamed
from omni_torch.engine.batching import Batcher
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.pace import Pace
from omni_torch.placement.budgets import MAX_BATCH_TOKENS, MAX_RUNNING, chunks
from omni_torch.vocoder.deadlines import TEXT_SECONDS, policy_of


@define(eq=False)
class _Running:
    """An engine's request. ``streams``: of each, how many chunks there are, and what is sent for one."""

    flight: Flight
    visit: Visit
    streams: list[tuple[int, Output]]
    inputs: Inputs = field(factory=Inputs)
    request: ARRequest | None = None


class EngineStage(SimulatedStage):
    """An autoregressive stage: takes all that has come, then computes a step that the engine's batcher plans.

    Args:
        settings: the stage's ``factory_args``; those that the engine has are used. Without ``kv_blocks`` the cache is never full.
        output_seconds: the same of its model runner.
    """

    is_in_parts = True

    def __init__(
        self,
        name: str,
        profile: StageProfile,
        costing: Costing,
        settings: Settings,
        output_seconds: float | None = None,
    ) -> None:
        super().__init__(name, profile, costing)
        policy = policy_of(settings.get("policy"))
        self._pace = None if policy is None else Pace(policy, output_seconds or TEXT_SECONDS)
        self._watch = Watch()
        self._kind = ""
        layout = KVLayout(0, 1, 1, torch.float32)
        block = int(settings.get("block_size", 16))
        cache = KVCache(layout, int(settings.get("kv_blocks") or 100_000), block, torch.device("cpu"))
        given = settings.get("chunk_size")
        chunk_size, chunk_alone = chunks(int(given) if given else None)
        self.batcher = Batcher(
            cache,
            int(settings.get("max_running") or MAX_RUNNING),
            int(settings.get("max_batch_tokens") or MAX_BATCH_TOKENS),
            chunk_size,
            share_prefixes=False,  # a sample's prompt is what was computed of it
            patience=int(settings.get("patience") or 64),
            pace=self._pace,
            chunk_alone=chunk_alone,
        )
        self._running: dict[str, _Running] = {}
        self._ended: set[str] = set()

    def turn(self) -> list[Step]:
        inbox, now = self.inbox, self.now()
        taken = len(inbox)
        if taken:
            self._kind = inbox[0][0].kind
        self._watch.turn(now)
        while inbox:
            self._take(inbox.popleft())
        plan = self.batcher.plan(self._can_step, now)
        work = plan.work
        if not work:
            return [(self._costing(self._kind, (0, 0, 0, 0, taken, self.woken)), [])] if taken else []
        decodes = total = context = 0
        pairs = 0.0
        for request, count in work:
            computed = request.computed
            if count == 1 and request.output_ids:
                decodes += 1
            total += count
            context += computed
            pairs += count * (computed + count / 2)
        prompts = len(work) - decodes
        positions = total - decodes
        turns = (decodes > 0) + (prompts > 0)
        cost = self._costing(
            work[0][0].state.flight.kind,
            (turns, decodes, prompts, positions, taken, self.woken, context, pairs),
        )
        self.batcher.computed(plan)
        self._watch.spend(cost[0] + cost[1])
        if self._pace is not None:
            self._pace.computed(decodes, positions, self._watch.elapsed)
        if prompts and self._profile.after_first:
            return self._parts(work, cost, prompts)
        outputs: list[Output] = []
        for request, _ in work:
            self._sample(request, outputs)
        return [(cost, outputs)]

    def _parts(self, work: Sequence[tuple[ARRequest, int]], cost: Seconds, prompts: int) -> list[Step]:
        """Return a step with so many prompts in parts: a common one, at whose end the outputs of decodes leave, and one for each prompt
        that is complete. The first chunk of its answer leaves at the begin of its part, what else it sends at the end.
        """
        outputs: list[Output] = []
        answers: list[tuple[float, list[Output]]] = []
        for request, count in work:
            flight, is_decode, made = request.state.flight, count == 1 and bool(request.output_ids), list[Output]()
            self._sample(request, made)
            if is_decode or not made:
                outputs += made
            else:
                answers.append((self._profile.after_first.get(flight.kind, 0.0) / prompts, made))
        parts = [1.0 - sum(share for share, _ in answers), *(share for share, _ in answers)]
        steps: list[Step] = []
        for part, answer in zip(parts, [*(made for _, made in answers), []], strict=True):
            sooner = [each for each in answer[:1] if each[1] == CHUNK]
            steps.append(((part * cost[0], part * cost[1]), outputs + sooner))
            outputs = answer[len(sooner) :]
        return steps

    def drop(self, flight: Flight) -> None:
        running = self._running.pop(flight.name, None)
        if running is not None and running.request is not None:
            self.batcher.remove(running.request)
            if self._pace is not None:
                self._pace.policy.end(flight.name)

    def _take(self, message: Message) -> None:
        flight = message[0]
        if flight.name in self._ended:
            return  # its stream goes on
        running = self._running.get(flight.name)
        if running is None:
            visit = flight.sample[self.name]
            streams: list[tuple[int, Output]] = [
                (total, (flight, CHUNK, [target], 0)) for target, total in visit.chunks.items() if total
            ]
            running = self._running[flight.name] = _Running(flight, visit, streams)
        running.inputs.take(message)
        if running.request is None and running.inputs.messages >= self._profile.admit_after:
            visit = running.visit
            most, capacity = max(1, visit.prompt) + max(1, visit.outputs) - 1, self.batcher.cache.capacity
            if most > capacity:
                raise ConfigError(
                    f"stages[{self.name}]: a request of {most} positions does not fit into a KV cache of {capacity}; raise kv_cache_mb "
                    "or kv_blocks"
                )
            sampling = SamplingParams(max_new_tokens=max(1, visit.outputs))
            running.request = ARRequest(flight.name, OmniRequest(), [0] * max(1, visit.prompt), sampling, state=running)
            if self._pace is not None:
                self._pace.policy.begin(flight.name, running.request.request, self.now())
            self.batcher.add(running.request, self.now())

    def _can_step(self, request: ARRequest) -> bool:
        before = self._profile.admit_after
        if before == 1 or not request.output_ids:
            return True
        inputs: Inputs = request.state.inputs
        return bool(inputs.done) or len(request.output_ids) < inputs.chunks - before + 1

    def _sample(self, request: ARRequest, outputs: list[Output]) -> None:
        """Add the outputs of a request after a step that computed for it: of a token, if it was not a part of its prompt."""
        ids = request.output_ids
        if request.computed < len(request.prompt_ids) + len(ids):
            return
        running: _Running = request.state
        flight, all_made = running.flight, running.visit.outputs
        ids.append(0)
        if self._pace is not None:
            self._pace.emitted(flight.name, self.now() + self._watch.elapsed)
        made = len(ids)
        for total, chunk in running.streams:
            if total == all_made:
                outputs.append(chunk)
            else:
                outputs += [chunk] * streamed(total, all_made, made)
        if made >= all_made:
            self.batcher.remove(request)
            if self._pace is not None:
                self._pace.policy.end(flight.name)
            del self._running[flight.name]
            self._ended.add(flight.name)
            outputs += self._result(flight)
