"""Simulated stages make the steps of the runtime's schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from omni_core.errors import ConfigError
from omni_core.model_runner import ARRequest, SamplingParams
from omni_core.model_runner.types import KVLayout
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage
from omni_planner.engine_stage import EngineStage
from omni_planner.estimate import CLIENT, Seconds, Visit
from omni_planner.load import Arrival, Flight, Load
from omni_planner.simulation import simulate
from omni_planner.stages import CHUNK, DONE, PAYLOAD, FunctionStage, SimulatedStage, StreamStage, streamed
from omni_planner.vocoder_stage import VocoderStage
from omni_torch.engine.batching import Batcher
from omni_torch.engine.kv_cache import KVCache
from omni_torch.placement.work import Counts
from omni_torch.vocoder.scheduler import VocoderScheduler


def flight(name: str, **sample: Visit) -> Flight:
    return Flight(name, Arrival(0.0, "kind", sample), 0.0)


@define
class Noted:
    """A costing that notes what is computed."""

    steps: list[Counts] = field(factory=list)
    cost: Seconds = (0.0, 0.0)

    def __call__(self, counts: Counts, passes: int, taken: int) -> Seconds:
        if passes:
            self.steps.append(counts)
        return self.cost


def sent(stage: SimulatedStage) -> list[str]:
    return [what for _, outputs in stage.turn() for _, what, *_ in outputs]


requests = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 60), st.integers(1, 12)),  # turn of arrival, prompt, outputs
    min_size=1,
    max_size=9,
)


@given(requests, st.integers(1, 6), st.sampled_from([8, 24, 64]))
def test_an_engine_computes_the_same_steps_as_long_as_its_cache_has_room(
    asked: list[tuple[int, int, int]], max_running: int, max_batch_tokens: int
) -> None:
    """Random schedules: as many decodes, prompts and positions in each step, after as many cached positions."""
    options = {"max_running": max_running, "max_batch_tokens": max_batch_tokens, "chunk_size": 16, "block_size": 8}
    noted = Noted()
    stage = EngineStage("engine", noted, options, kv_blocks=1000)
    cache = KVCache(KVLayout(0, 1, 1, torch.float32), 1000, 8, torch.device("cpu"))
    real = Batcher(cache, max_running, max_batch_tokens, 16, share_prefixes=False, patience=10**6, chunk_alone=16)
    running: dict[str, ARRequest] = {}
    for turn in range(1000):
        for index, (when, prompt, outputs) in enumerate(asked):
            if when == turn:
                sampling = SamplingParams(max_new_tokens=outputs)
                running[str(index)] = ARRequest(str(index), OmniRequest(), [0] * prompt, sampling)
                real.add(running[str(index)])
                visit = Visit([CLIENT], [CLIENT], {}, prompt, outputs)
                stage.inbox.append((flight(str(index), engine=visit), PAYLOAD, CLIENT))
        noted.steps.clear()
        stage.turn()
        plan = real.plan(lambda request: True)
        real.computed(plan)
        work = plan.work
        decodes = [each for each, count in work if count == 1 and each.output_ids]
        positions = sum(count for _, count in work) - len(decodes)
        context = sum(each.computed - count for each, count in work)
        expected = (len(decodes), len(work) - len(decodes), positions, context)
        found = [(each.decodes, each.prompts, each.positions, each.context) for each in noted.steps]
        assert found == ([expected] if work else [])
        for each, _ in work:
            if each.computed == len(each.prompt_ids) + len(each.output_ids):
                each.output_ids.append(0)
                if len(each.output_ids) == each.sampling.max_new_tokens:
                    real.remove(each)
                    del running[each.request_id]
        if turn > 12 and not running:
            break
    assert not running


def test_an_engine_preempts_the_last_request_when_its_cache_is_full() -> None:
    """Four blocks of four positions for two requests that end with twelve each: the second begins anew when the first has ended."""
    noted = Noted()
    stage = EngineStage("engine", noted, {"block_size": 4}, kv_blocks=4)
    for name in "ab":
        stage.inbox.append((flight(name, engine=Visit([CLIENT], [CLIENT], {}, 6, 6)), PAYLOAD, CLIENT))
    ended = list[str]()
    while steps := stage.turn():
        ended += [each.name for _, outputs in steps for each, what, *_ in outputs if what == PAYLOAD]
    assert ended == ["a", "b"]
    assert [each.positions for each in noted.steps if each.positions] == [12, 9], "its prompt and three tokens again"
    assert [each.decodes for each in noted.steps] == [0, 2, 2, 1, 1, 1, 0, 1, 1]


def test_a_prompt_without_others_is_computed_in_larger_parts() -> None:
    noted = Noted()
    stage = EngineStage("engine", noted, {})
    for name in ("alone", "beside"):
        stage.inbox.append((flight(name, engine=Visit([CLIENT], [CLIENT], {}, 1500, 3)), PAYLOAD, CLIENT))
        stage.turn()
    assert [each.positions for each in noted.steps] == [1024, 476 + 512]


def test_a_request_that_no_cache_holds_is_an_error_that_says_so() -> None:
    stage = EngineStage("thinker", Noted(), {}, kv_blocks=2)
    stage.inbox.append((flight("a", thinker=Visit([CLIENT], [CLIENT], {}, 30, 4)), PAYLOAD, CLIENT))
    with pytest.raises(ConfigError, match="33 positions does not fit into a KV cache of 32"):
        stage.turn()


def test_an_engine_that_is_fed_by_a_stream_waits_for_it() -> None:
    stage = EngineStage("talker", Noted(), {}, admit_after=2)
    visits = {"thinker": Visit(chunks={"talker": 3}), "talker": Visit(["thinker"], [CLIENT], {CLIENT: 4}, 5, 4)}
    made = flight("a", **visits)
    stage.inbox.append((made, CHUNK, "thinker"))
    assert sent(stage) == []
    stage.inbox.append((made, CHUNK, "thinker"))
    assert sent(stage) == [CHUNK]
    assert sent(stage) == []
    stage.inbox.append((made, CHUNK, "thinker"))
    assert sent(stage) == [CHUNK]
    stage.inbox.append((made, DONE, "thinker"))
    assert [sent(stage), sent(stage), sent(stage)] == [[CHUNK], [CHUNK, PAYLOAD], []]
    stage.inbox.append((made, PAYLOAD, "thinker"))
    assert sent(stage) == [], "it has ended"


@define
class _Sounds:
    """A vocoder whose frame is two samples. ``passes``: streams and frames of each."""

    passes: list[tuple[int, int]] = field(factory=list)
    device, sample_rate, codebooks, codebook_size = torch.device("cpu"), 25, 1, 1

    def begin(self) -> None:
        """Keep nothing of a stream."""

    def decode(self, work: list[tuple[None, torch.Tensor]]) -> list[torch.Tensor]:
        self.passes.append((len(work), sum(len(frames) for _, frames in work)))
        return [torch.zeros(2 * len(frames)) for _, frames in work]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 6)), min_size=1, max_size=7),
    st.integers(1, 5),
    st.integers(1, 12),
    st.sampled_from([None, 0.5, 1.0, 2.0]),
    st.sampled_from([None, 1, 3]),
)
def test_a_vocoder_makes_the_same_passes_and_sends_the_same_sound(
    asked: list[tuple[int, int, int]],  # turn of the first frames, frames, and how many come in a turn
    initial_chunk: int,
    chunk: int,
    growth: float | None,
    max_running: int | None,
) -> None:
    """Random schedules: in each turn the same pass and the same pieces."""
    options: dict[str, Any] = {
        "initial_chunk": initial_chunk,
        "chunk": chunk,
        "growth": growth,
        "max_running": max_running,
    }
    vocoder, noted = _Sounds(), Noted()
    real, stage = VocoderScheduler(vocoder, **options), VocoderStage("vocoder", noted, options)
    frame, turn = torch.zeros(1, dtype=torch.int64), 0
    left = [frames for _, frames, _ in asked]
    flights = [
        flight(str(index), talker=Visit(targets=["vocoder"], chunks={"vocoder": count}), vocoder=Visit(["talker"]))
        for index, (_, count, _) in enumerate(asked)
    ]
    while any(left) or real.unfinished or len(real.inbox):
        for index, (first, _, rate) in enumerate(asked):
            coming = min(rate, left[index]) if turn >= first else 0
            left[index] -= coming
            messages: list[tuple[Any, Any]] = [(CHUNK, frame)] * coming
            if coming and not left[index]:
                messages += [(DONE, None), (PAYLOAD, StagePayload(str(index), OmniRequest(), None))]
            for what, data in messages:
                kind: Any = {CHUNK: "stream_chunk", DONE: "stream_done", PAYLOAD: "new_request"}[what]
                real.inbox.put(IncomingMessage(str(index), kind, data, "talker"))
                stage.inbox.append((flights[index], what, "talker"))
        heard = list[tuple[str, int]]()
        if len(real.inbox) or real.unfinished:
            real.turn()
            for message in real.outbox.drain():
                heard.append((message.request_id, len(message.data.samples) // 2 if message.type == "stream" else 0))
        outputs = [output for _, outputs in stage.turn() for output in outputs]
        assert sorted((each.name, frames) for each, _, _, frames in outputs) == sorted(heard)
        assert [(each.decodes, each.positions) for each in noted.steps] == vocoder.passes
        turn += 1
    assert sum(frames for _, frames in vocoder.passes) == sum(frames for _, frames, _ in asked)


def test_a_stream_stage_hands_on_as_many_chunks_as_it_has() -> None:
    stage = StreamStage("decode", Noted())
    visits = {
        "thinker": Visit(targets=["decode"], chunks={"decode": 6}),
        "decode": Visit(["thinker"], [CLIENT], {CLIENT: 4}),
    }
    made, found = flight("a", **visits), list[str]()
    for what in [*[CHUNK] * 6, PAYLOAD, DONE]:
        stage.inbox.append((made, what, "thinker"))
        found += sent(stage)
    assert found == [*[CHUNK] * 4, PAYLOAD]


def test_a_stream_begins_with_the_first_output_and_lacks_the_last() -> None:
    assert [streamed(5, 6, made) for made in range(1, 7)] == [1, 1, 1, 1, 1, 0], "the token that ends a text"
    assert [streamed(2, 6, made) for made in range(1, 7)] == [1, 0, 0, 1, 0, 0]
    assert [streamed(8, 4, made) for made in range(1, 5)] == [2, 2, 2, 2]
    assert streamed(3, 0, 1) == 0


def test_a_function_takes_what_waits_as_a_batch_and_waits_for_it_to_fill() -> None:
    noted, now = Noted(), 5.0
    stage = FunctionStage("encode", noted, {"batch_size": 3, "batch_wait": 0.5})
    stage.now = lambda: now

    def come(*names: str) -> list[list[str]]:
        for each in names:
            stage.inbox.append((flight(each, encode=Visit(targets=["next"], prompt=10)), PAYLOAD, CLIENT))
        return [[sent.name for sent, *_ in outputs] for _, outputs in stage.turn()]

    assert come("a") == []
    assert stage.wait == 0.5
    now = 5.25
    assert come("b") == []
    assert stage.wait == 0.25, "from the first request on"
    assert come("c", "d") == [["a", "b", "c"]]
    assert noted.steps == [Counts(prompts=3, positions=30, pairs=300)]
    assert come() == []
    now += stage.wait or 0.0
    assert come() == [["d"]]
    assert (come(), stage.wait) == ([], None)


def test_a_batch_that_waits_is_computed_when_its_time_has_come(functions: Callable[..., Any]) -> None:
    arguments = {"batch_size": 4, "batch_wait": 0.5}
    made = functions("a", seconds=0.1, factory_args=arguments)
    alone = simulate(*made, Load({"text": 1.0}, 1, in_flight=1))
    assert alone.seconds == pytest.approx(0.6)
    together = simulate(*made, Load({"text": 1.0}, 4, in_flight=4))
    assert together.seconds == pytest.approx(0.4), "a function without a network takes as long for each"


def test_a_function_that_streams_makes_its_chunks_one_after_the_other() -> None:
    """To the client with the frames that each has, to a stage without; its result comes with the last one."""
    stage = FunctionStage("speak", Noted(cost=(3.0, 6.0)), {})
    visit = Visit(targets=[CLIENT], chunks={CLIENT: 3, "next": 2, "none": 0}, prompt=700)
    stage.inbox.append((flight("one", speak=visit), PAYLOAD, "before"))
    steps = stage.turn()
    assert [cost for cost, _ in steps] == [(1.0, 2.0)] * 3
    found = [[(what, to, frames) for _, what, to, frames in outputs] for _, outputs in steps]
    to_client = [frames for outputs in found for what, to, frames in outputs if (what, to) == (CHUNK, [CLIENT])]
    assert (sum(to_client), len(to_client)) == (700, 3)
    assert max(to_client) - min(to_client) <= 1
    assert [(CHUNK, ["next"], 0) in outputs for outputs in found] == [True, True, False]
    assert found[-1][-2:] == [(DONE, ["next", "none"], 0), (PAYLOAD, [CLIENT], 0)]
    stage.inbox.append((flight("plain", speak=Visit(targets=[CLIENT])), PAYLOAD, "before"))
    ((cost, outputs),) = stage.turn()
    assert (cost, [what for _, what, _, _ in outputs]) == ((3.0, 6.0), [PAYLOAD])
