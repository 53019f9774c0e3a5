"""Sound that is still coming, through stages of recognisers that read windows."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from tiny_transformers import MAKERS, checkpoint, listeners, recognisers, speakers, tiny_whisper
from tiny_transformers.driving import outputs, replies, running, send, send_sound
from tiny_transformers.tiny_whisper import hear, tone
from tiny_transformers.written import LANGUAGE

import omni_core
from omni_core.api import (
    AudioChunk,
    ConfigError,
    IncomingMessage,
    InvalidRequestError,
    OmniRequest,
    Scheduler,
    Transcript,
)
from omni_testing import StreamedInputConformance
from omni_testing.outputs import check_transcript
from omni_transformers.architectures import table
from omni_transformers.pipeline import transformers as pipeline
from omni_transformers.recognise.live_windows import LiveWindows
from omni_transformers.recognise.text import decoded
from omni_transformers.recognise.whisper import TEMPERATURES, create_whisper
from omni_transformers.recognise.whisper_windows import Windows, Written
from omni_transformers.words.recognisers import reads_windows

assert recognisers
assert listeners
assert speakers
WHISPER = "WhisperForConditionalGeneration"
SMALL = (WHISPER, "MoonshineForConditionalGeneration", "Wav2Vec2ForCTC", "ParakeetForTDT")
NAMES = [name for name in MAKERS if reads_windows(table()[name])]
ALL = [pytest.param(name, marks=[] if name in SMALL else [pytest.mark.full], id=name) for name in NAMES]


@pytest.fixture(scope="module", params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def scheduler(name: str) -> Iterator[LiveWindows[Any]]:
    [stage] = pipeline(str(checkpoint(name))).stages
    assert stage.factory is not None
    module, factory = stage.factory.split(":")
    made = getattr(import_module(module), factory)(str(checkpoint(name)), **stage.factory_args)
    made.behind = math.inf  # every hypothesis is made, however late
    with running(made) as scheduler:
        assert isinstance(scheduler, LiveWindows)
        yield scheduler


def asked(name: str, times: str = "none") -> dict[str, Any]:
    """Return the parameters of a request, by their group."""
    if table()[name].kind == "words":
        return {"answer": {"max_new_tokens": 6}}
    return {"listen": {**({"language": LANGUAGE[name]} if name in LANGUAGE else {}), "timestamps": times}}


def live(scheduler: Scheduler, name: str, pieces: Sequence[np.ndarray], times: str = "none") -> Transcript:
    """Return the transcript of a sound that comes in pieces; what is streamed must be that."""
    send_sound(scheduler, "live", pieces, asked(name, times))
    *chunks, result = outputs(scheduler, ["live"])["live"]
    if isinstance(result, BaseException):
        raise result
    check_transcript(chunks, result, "none" if "answer" in asked(name) else times)
    assert isinstance(result, Transcript)
    return result


def test_a_short_sound_gives_what_its_recording_gives(scheduler: Scheduler, name: str) -> None:
    samples = tone(0.9, 1)
    [(_, whole)] = replies(scheduler, [evolve(hear(samples), params=asked(name, "segment"))])
    result = live(scheduler, name, np.split(samples, [1, 5000]), "segment")
    assert (result.text, result.language, result.duration) == (whole.text.strip(), whole.language, 0.9)
    assert whole.text or "answer" in asked(name)
    assert result.finish_reason == whole.finish_reason
    if whole.segments:
        assert result.segments[0].start == whole.segments[0].start
        assert "".join(each.text for each in result.segments).strip() == result.text


def test_every_cut_gives_the_same(scheduler: Scheduler, name: str) -> None:
    samples = np.concatenate([tone(2.6, 1), np.zeros(24_000, np.float32), tone(1.3, 2)])
    made = [live(scheduler, name, np.split(samples, cuts), "segment") for cuts in ([], range(0, len(samples), 3001))]
    assert made[0] == made[1]
    assert made[0].text or "answer" in asked(name)
    assert made[0].duration == 5.4


@pytest.fixture(scope="module")
def whisper() -> Iterator[LiveWindows[Any]]:
    with running(create_whisper(str(checkpoint(WHISPER)))) as scheduler:
        assert isinstance(scheduler, LiveWindows)
        yield scheduler


class TestInputs(StreamedInputConformance):
    cuts = 3

    def make(self) -> Scheduler:
        made = create_whisper(str(checkpoint(WHISPER)))
        assert isinstance(made, LiveWindows)
        made.behind = math.inf
        return made

    def pieces(self, number: int) -> list[AudioChunk]:
        return [AudioChunk(each, 16_000) for each in np.split(tone(2.3, number), 10)]

    def join(self, pieces: list[AudioChunk]) -> AudioChunk:
        return AudioChunk(np.concatenate([each.samples for each in pieces]), 16_000)

    def bad(self) -> AudioChunk:
        return AudioChunk(np.array([0.0, np.nan], np.float32), 16_000)

    def request(self) -> OmniRequest:
        return OmniRequest({"messages": []})


def test_sounds_and_recordings_at_once_are_written_as_alone(whisper: LiveWindows[Any]) -> None:
    sounds = {"a": tone(1.9, 1), "b": tone(0.9, 2), "c": tone(1.7, 3)}
    whole = replies(whisper, [hear(tone(3.0, 4))])
    alone = {}
    for name, each in sounds.items():
        send_sound(whisper, name, [each], {})
        alone |= outputs(whisper, [name])
    for name, each in sounds.items():
        send_sound(whisper, name, [each], {})
    send(whisper, "whole", hear(tone(3.0, 4)))
    together = outputs(whisper, [*sounds, "whole"])
    assert (together.pop("whole")[-1], together) == (whole[0][1], alone)


def test_another_rate_is_resampled(whisper: LiveWindows[Any]) -> None:
    samples = tone(0.9, 1)[::2].copy()
    recording = hear(samples)
    recording.inputs["messages"][0]["content"][0]["sample_rate"] = 8000
    [(_, whole)] = replies(whisper, [recording])
    send_sound(whisper, "r", np.split(samples, [3, 4000]), {}, 8000)
    assert outputs(whisper, ["r"])["r"][-1].text == whole.text != ""


def test_silence_is_not_computed(whisper: LiveWindows[Any]) -> None:
    before = whisper.statistics()["computed"]
    send_sound(whisper, "silent", np.split(np.full(60 * 16_000, 1e-4, np.float32), 60), {})
    [result] = outputs(whisper, ["silent"])["silent"]
    assert (result.text, result.duration) == ("", 60.0)
    assert whisper.statistics()["computed"] == before


def test_the_language_and_the_text_before_are_those_of_the_first_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, prompts = list[int](), list[str]()

    def language(windows: Windows, encoded: Any) -> str:
        heard.append(1)
        return "de"

    def prompt_ids(windows: Windows, text: str) -> list[int]:
        prompts.append(text)
        return own(windows, text)

    own = Windows.prompt_ids
    monkeypatch.setattr(Windows, "language", language)
    monkeypatch.setattr(Windows, "prompt_ids", prompt_ids)
    with running(create_whisper(str(checkpoint(WHISPER)))) as scheduler:
        send_sound(scheduler, "r", [tone(6.0, 1)], {"listen": {"prompt": "Abc"}})
        result = outputs(scheduler, ["r"])["r"][-1]
        made = scheduler.statistics()["computed"]  # type: ignore[attr-defined]
    assert result.language == "de"
    assert len(heard) < made == len(prompts)
    assert prompts[0] == "Abc"
    assert prompts[-1].startswith("Abc ")
    assert prompts[-1].removeprefix("Abc ") in result.text


def test_hypotheses_are_left_out_where_sound_comes_too_fast(whisper: LiveWindows[Any]) -> None:
    before = whisper.statistics()["computed"]
    send_sound(whisper, "r", np.split(tone(30.0, 1), 300), {})
    result = outputs(whisper, ["r"])["r"][-1]
    assert result.duration == 30.0
    assert whisper.statistics()["computed"] - before < 40  # windows of 2 s, each divided once


def test_an_abort_ends_the_window_that_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, aborted = threading.Event(), threading.Event()
    own = Windows.encoded

    def encoded(windows: Windows, features: Any) -> Any:
        entered.set()
        assert aborted.wait(60)
        return own(windows, features)

    monkeypatch.setattr(Windows, "encoded", encoded)
    with running(create_whisper(str(checkpoint(WHISPER)))) as scheduler:
        send_sound(scheduler, "r", [tone(5.0, 1)], {})
        assert entered.wait(60)
        scheduler.abort("r")
        aborted.set()
        send_sound(scheduler, "after", [tone(0.5, 1)], {})
        found = outputs(scheduler, ["after"])
        assert [*found] == ["after"]
        assert (found["after"][-1].duration, scheduler.statistics()["live"]) == (0.5, 0)  # type: ignore[attr-defined]
        scheduler.inbox.put(IncomingMessage("r", "stream_chunk", AudioChunk(tone(0.1), 16_000)))  # comes late
        send_sound(scheduler, "last", [tone(0.5, 1)], {})
        assert [*outputs(scheduler, ["last"])] == ["last"]
    assert not [each.name for each in threading.enumerate() if each.name.startswith(("line", "generate"))]


@pytest.mark.parametrize(
    ("chunks", "match"),
    [
        ([], "there is no sound in it"),
        ([AudioChunk(np.zeros(0, np.float32), 16_000)], "there is no sound in it"),
        ([AudioChunk(tone(0.1), 16_000), AudioChunk(tone(0.1), 8_000)], "8000 Hz after 16000 Hz"),
        ([AudioChunk(tone(2.5), 16_000), AudioChunk(np.full(1, np.inf, np.float32), 16_000)], "the sample at 2.500 s"),
    ],
)
def test_a_wrong_sound_fails_its_request(whisper: LiveWindows[Any], chunks: list[AudioChunk], match: str) -> None:
    send(whisper, "wrong", OmniRequest({"messages": []}))
    for each in chunks:
        whisper.inbox.put(IncomingMessage("wrong", "stream_chunk", each))
    whisper.inbox.put(IncomingMessage("wrong", "stream_done"))
    error = outputs(whisper, ["wrong"])["wrong"][-1]
    assert isinstance(error, InvalidRequestError)
    with pytest.raises(InvalidRequestError, match=match):
        raise error
    send_sound(whisper, "after", [tone(0.5)], {})
    assert outputs(whisper, ["after"])["after"][-1].text
    assert whisper.statistics()["live"] == whisper.statistics()["running"] == 0


def test_a_sound_is_over_the_option_s_limit() -> None:
    with running(create_whisper(str(checkpoint(WHISPER)), max_audio_seconds=1.0)) as scheduler:
        send_sound(scheduler, "r", [tone(0.9), tone(0.2)], {})
        error = outputs(scheduler, ["r"])["r"][-1]
        send_sound(scheduler, "told", [tone(0.9)], {"listen": {"logprobs": True}})
        other = outputs(scheduler, ["told"])["told"][-1]
    assert "longer than 1 s (max_audio_seconds)" in str(error)
    assert "params.listen.logprobs: told of whole recordings only" in str(other)


@pytest.mark.parametrize("step", [0.1, 11, "x", True])
def test_a_step_has_bounds(step: Any) -> None:
    with pytest.raises(ConfigError, match="live_step"):
        pipeline(str(checkpoint(WHISPER)), live_step=step)
    with pytest.raises(ConfigError, match="has no effect"):
        pipeline(str(checkpoint("VitsModel")), live_step=1.0)


def test_a_draft_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temperatures = list[float]()
    own = Windows.written

    def written(windows: Windows, encoded: Any, temperature: float, *args: Any, **given: Any) -> Written:
        temperatures.append(temperature)
        return own(windows, encoded, temperature, *args, **given)

    monkeypatch.setattr(Windows, "written", written)
    tiny_whisper.whisper(tmp_path, logprob_threshold=0.0, no_speech_threshold=2.0)  # nothing satisfies
    with running(create_whisper(str(tmp_path), live_step=0.5)) as scheduler:
        send_sound(scheduler, "r", [tone(0.9, 1)], {})
        assert outputs(scheduler, ["r"])["r"][-1].text
    assert temperatures == [0.0, *TEMPERATURES]  # at 0.5 s, and at the end


def test_a_text_goes_on_behind_what_is_said() -> None:
    windows = Windows(str(checkpoint(WHISPER)), "cpu", "auto")
    with torch.inference_mode():
        encoded = windows.encoded(windows.features(tone(1.0, 1), one_window=True))
        whole = windows.written(encoded, 0.0, print, False, None, language="<|de|>")
        text = decoded(windows.tokenizer, whole.ids)
        for count in range(1, len(whole.ids) + 1):
            rest = windows.written(encoded, 0.0, print, False, None, said=text[:count], language="<|de|>")
            assert (rest.said, rest.said + decoded(windows.tokenizer, rest.ids)) == (text[:count], text)
            assert rest.ended
        assert windows.written(encoded, 0.0, print, False, None, said="a", language="<|en|>").said == ""  # none before
        assert windows.written(encoded, 0.0, print, True, None, said=text[:1], language="<|de|>").said == ""


def test_a_sender_waits_while_there_is_sound_for_a_window() -> None:
    scheduler, held = create_whisper(str(checkpoint(WHISPER))), list[tuple[str, bool]]()
    assert isinstance(scheduler, LiveWindows)
    scheduler.hold_input = lambda name, is_held: held.append((name, is_held))
    send_sound(scheduler, "r", [tone(4.0, 1)], {}, ended=False)
    scheduler.turn()
    assert held == [("r", True)]
    send_sound(scheduler, "other", [tone(0.5, 1)], {})
    for piece in (tone(1.0, 2), tone(1.0, 3)):
        scheduler.inbox.put(IncomingMessage("r", "stream_chunk", AudioChunk(piece, 16_000)))
    scheduler.inbox.put(IncomingMessage("r", "stream_done"))
    with running(scheduler):
        found = outputs(scheduler, ["r", "other"])
    assert (found["r"][-1].duration, found["other"][-1].duration) == (6.0, 0.5)
    assert held[-1] == ("r", False)


@pytest.mark.full
def test_a_pipeline_takes_live_sound_and_recordings() -> None:
    samples = tone(0.9, 1)
    with omni_core.open(str(checkpoint(WHISPER))) as pipe:
        with pipe.open_request(OmniRequest({"messages": []}, {"language": "de"})) as request:
            for each in np.split(samples, 9):
                request.send(AudioChunk(each, 16_000))
            request.finish()
            live = request.results()["listen"]
        whole = pipe.submit(evolve(hear(samples), params={"language": "de"}))["listen"]
        opened = [pipe.open_request(OmniRequest({"messages": []})) for _ in range(20)]
        for request in opened:
            request.send(AudioChunk(samples, 16_000))
        for request in opened:
            request.close()
        assert (live.text, live.language) == (whole.text, "de")
        assert pipe.submit(hear(samples))["listen"].text
        assert pipe.statistics()["model"]["listen"]["live"] == 0
