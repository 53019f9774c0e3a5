"""Calls of a decoder by ``generate()`` of several requests: computed together, with the ids of each alone, whatever happens to others."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import checkpoint, recognisers, writers
from tiny_transformers.driving import replies, running, send
from tiny_transformers.tiny_whisper import hear, tone, whisper

from omni_core.api import OmniRequest, StagePayload
from omni_transformers.calls.batch import Calls
from omni_transformers.calls.choice import Loop, backend_of, calls_of
from omni_transformers.calls.packed import Packed, Untaken
from omni_transformers.interleaved import Interleaved
from omni_transformers.loading import load_model
from omni_transformers.recognise.whisper import create_whisper
from omni_transformers.words.engine_layers import Unfit

assert recognisers
assert writers


@pytest.fixture(scope="module")
def folder() -> Path:
    return checkpoint("WhisperForConditionalGeneration")


def calls_in(scheduler: Any) -> Calls:
    calls: Calls = scheduler._calls
    return calls


def test_requests_share_steps_and_find_room_in_a_small_cache(folder: Path) -> None:
    """A cache that holds no more than 18 of 24 requests: some are put aside, and all texts are those of each alone."""
    asked = [hear(tone(1.5, number % 5)) for number in range(24)]
    with running(create_whisper(str(folder), backend="engine", max_running=24, kv_cache_mb=1)) as scheduler:
        calls = calls_in(scheduler)
        alone = [replies(scheduler, [each])[0][1].text for each in asked[:5]]
        steps, rows = calls.steps, calls.rows
        together = [result.text for _, result in replies(scheduler, asked)]
        assert together == [alone[number % 5] for number in range(24)]
        assert calls.rows - rows > 8 * (calls.steps - steps), "calls were computed one by one"
        assert calls._sequences.stored > 0
        assert calls._sequences.cache.pool.free == calls._sequences.cache.pool.total
    assert len(set(alone)) > 1


def test_an_abort_and_the_end_of_the_stage_end_a_request_where_it_waits(folder: Path) -> None:
    with running(create_whisper(str(folder), backend="engine")) as scheduler:
        send(scheduler, "gone", hear(tone(1.5, 3)))
        while (message := scheduler.outbox.get(30)) is None or message.type != "stream":
            assert message is not None
        scheduler.abort("gone")
        [(_, kept)] = replies(scheduler, [hear(tone(1.5, 1))])
        assert kept.text
        calls = calls_in(scheduler)
        assert calls._sequences.cache.pool.free == calls._sequences.cache.pool.total
        send(scheduler, "left", hear(tone(1.5, 3)))
        while (message := scheduler.outbox.get(30)) is None or message.type != "stream":
            assert message is not None
    assert not [each for each in threading.enumerate() if each.name.startswith(("line", "generate"))]


def test_how_a_checkpoint_would_lay_out_its_cache_changes_nothing(folder: Path, tmp_path: Path) -> None:
    whisper(tmp_path, cache_implementation="static", output_hidden_states=True, return_dict_in_generate=True)
    found = []
    for each in (folder, tmp_path):
        with running(create_whisper(str(each), backend="engine")) as scheduler:
            found.append([result.text for _, result in replies(scheduler, [hear(tone(1.5, 1)), hear(tone(1.5, 3))])])
            assert not calls_in(scheduler).alone
    assert found[0] == found[1]


def test_a_lack_of_memory_or_threads_ends_no_more_requests_than_it_must(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "line 3":
            raise RuntimeError("can't start new thread")
        start(thread)

    def full(name: str) -> None:
        raise MemoryError

    scheduler: Any = create_whisper(str(folder), backend="engine", max_running=24, kv_cache_mb=1)
    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setattr(calls_in(scheduler)._sequences, "_store", full)
    for number in range(24):  # before it begins, so that they begin together
        send(scheduler, str(number), hear(tone(1.5, 1)))
    with running(scheduler):
        found: dict[str, Any] = {}
        while len(found) < 24:
            message = scheduler.outbox.get(30)
            assert message is not None
            if message.type != "stream":
                found[message.request_id] = message.data
        assert not scheduler._open
    assert isinstance(found.pop("3"), RuntimeError)
    texts = {each.text for each in found.values() if not isinstance(each, MemoryError)}
    assert len(texts) == 1
    assert 0 < sum(isinstance(each, MemoryError) for each in found.values()) < 12


def test_stages_of_one_process_draw_none_of_each_others_random_numbers(folder: Path) -> None:
    asked = [hear(tone(1.5, number), temperature=1.0, seed=number) for number in range(6)]
    with (
        running(create_whisper(str(folder), backend="steps")) as one,
        running(create_whisper(str(folder), backend="engine")) as other,  # of the same model
    ):
        alone = [result.text for _, result in replies(one, asked)]
        with ThreadPoolExecutor() as pool:
            found = [*pool.map(lambda scheduler: replies(scheduler, asked), (one, other))]
    assert all([result.text for _, result in each] == alone for each in found)


def ask(scheduler: Any, first: list[int]) -> dict[str, Any]:
    for number in first:
        send(scheduler, str(number), OmniRequest(number))
    found: dict[str, Any] = {}
    while len(found) < len(first):
        message = scheduler.outbox.get(30)
        assert message is not None
        if message.type != "stream":
            found[message.request_id] = message.data
    return found


def test_a_call_that_fails_ends_its_request_alone() -> None:
    model = load_model(str(checkpoint("BartForConditionalGeneration")))
    calls = calls_of(Loop(model), "engine", 8)
    assert calls is not None
    run = calls._packed.run

    def failing(arguments: Any, positions: Any, attention: Any, lengths: Any) -> Any:
        if bool((arguments["input_ids"] == 13).any()):
            raise RuntimeError("thirteen")
        return run(arguments, positions, attention, lengths)

    calls._packed.run = failing  # type: ignore[method-assign]

    def compute(payload: StagePayload) -> Generator[Any, None, list[int]]:
        with torch.inference_mode():
            made = model.generate(
                torch.arange(10, 16).unsqueeze(0),
                decoder_input_ids=torch.tensor([[2, payload.request.inputs]]),
                max_new_tokens=5,
                num_beams=1,
                do_sample=False,
                suppress_tokens=[13],
                forced_bos_token_id=None,
            )
        yield None
        return made[0].tolist()  # type: ignore[no-any-return]

    with running(Interleaved(compute, 8, calls)) as scheduler:
        found = ask(scheduler, [11, 12, 13, 14])
        again = ask(scheduler, [11, 12, 14])
    assert isinstance(found["13"], RuntimeError)
    assert all(found[name] == again[name] for name in again)
    assert calls._sequences.cache.pool.free == calls._sequences.cache.pool.total


def test_a_decoder_that_mixes_tokens_beside_its_attention_is_refused() -> None:
    model = load_model(str(checkpoint("BartForConditionalGeneration")))
    layer = model.get_decoder().layers[0].fc1
    own = layer.forward
    layer.forward = lambda x: own(x + x.roll(1, 1))
    try:
        with pytest.raises(Unfit, match="something beside attention sees other tokens"):
            Packed(model.get_decoder())
        assert backend_of(Loop(model))[0] == "steps"
    finally:
        del layer.forward
        load_model.cache_clear()
    assert backend_of(Loop(load_model(str(checkpoint("BartForConditionalGeneration"))))) == ("engine", [])
    t5 = load_model(str(checkpoint("T5ForConditionalGeneration")))
    assert backend_of(Loop(t5)) == ("steps", ["its decoder takes no position_ids"])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"attention_mask": torch.tensor([[0, 1]])}, "it gets a mask"),
        ({"encoder_hidden_states": None}, "it gets no encoder's output"),
        ({"encoder_attention_mask": torch.zeros(1, 3)}, "it gets a mask of the encoder's output"),
        ({"head_mask": [1.0]}, "it gets head_mask"),
        ({"input_ids": torch.tensor([[2, 3]] * 2)}, "it gets several rows"),  # beams change places in their cache
    ],
)
def test_a_call_that_the_engine_has_no_place_for_is_told(given: dict[str, Any], reason: str) -> None:
    from transformers import DynamicCache, EncoderDecoderCache

    model = load_model(str(checkpoint("BartForConditionalGeneration")))
    packed = Packed(model.get_decoder())
    width = model.config.d_model
    call = {"input_ids": torch.tensor([[2, 3]]), "encoder_hidden_states": torch.zeros(1, 3, width), "use_cache": True}
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    memory = packed.memory(call, cache)
    assert memory is not None
    assert len(memory[0]) == packed.layout.layers
    with pytest.raises(Untaken, match=reason):
        packed.memory({**call, **given}, cache)
