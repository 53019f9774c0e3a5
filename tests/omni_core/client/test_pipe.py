"""The blocking face: replies, streams and errors by class."""

from __future__ import annotations

import asyncio
import time
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import omni_core as omni

LONG = "wait " * 400
"""Takes 8 s, if it is let."""


def test_a_reply_is_typed_and_keyed_by_what_it_is(pipe: omni.Pipe, tmp_path: Path) -> None:
    reply = pipe.chat("good morning", temperature=0.5, voice="anna")
    assert str(reply) == reply.text == "good morning"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (3, 2, 5)
    assert (reply.finish_reason, reply.notices) == ("stop", ["a notice"])
    assert sorted(reply.outputs) == ["audio", "text"]
    assert reply.audio.seconds == 0.25
    assert reply.audio.sample_rate == 8000
    path = reply.audio.save(tmp_path / "x.wav")
    with wave.open(str(path)) as file:
        assert (file.getnframes(), file.getframerate()) == (2000, 8000)
        assert set(file.readframes(2)) == {0x00, 0x40}
    assert '<audio controls src="data:audio/wav;base64,' in reply.audio._repr_html_()


def test_without_speech_the_audio_is_false(pipe: omni.Pipe, tmp_path: Path) -> None:
    reply = pipe.chat("hi", modalities=["text"])
    assert not reply.audio
    assert reply.audio.sample_rate == 8000
    with pytest.raises(omni.OmniError, match="no speech"):
        reply.audio.save(tmp_path / "x.wav")
    with pytest.raises(omni.OmniError, match=r"x\.mp3: save\(\) writes WAV"):
        pipe.chat("hi").audio.save(tmp_path / "x.mp3")
    assert not list(tmp_path.iterdir())


def test_pieces_add_up_to_the_reply(pipe: omni.Pipe) -> None:
    stream = pipe.chat("one two", stream=True)
    with pytest.raises(omni.OmniError, match="not complete"):
        _ = stream.reply
    pieces = list(stream)
    assert [each.text for each in pieces if isinstance(each, omni.TextPiece)] == ["one ", "two "]
    assert [each.seconds for each in pieces if isinstance(each, omni.AudioPiece)] == [0.25]
    assert stream.reply.text == "one two"
    assert stream.reply.audio.seconds == 0.25
    assert stream.reply.request_id == stream.request_id


def test_media_reach_the_stages(pipe: omni.Pipe, tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    file.write_bytes(b"png")
    assert pipe.chat("see", image=[file, b"bytes"]).text == "image path image data see"
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "user", "content": [url, {"type": "text", "text": "see"}]}
    assert pipe.chat([message], system="be brief").text == "image data see"


def test_errors_are_told_apart_by_class(pipe: omni.Pipe) -> None:
    with pytest.raises(
        omni.InvalidRequestError, match=r"params\.temprature: no such parameter; did you mean 'temperature'"
    ):
        pipe.chat("hi", temprature=1)
    with pytest.raises(omni.InvalidRequestError, match="anna, bert"):
        pipe.chat("hi", voice="carl")
    with pytest.raises(omni.InvalidRequestError, match=r"image: no such file: .*nope\.png"):
        pipe.chat("hi", image="nope.png")
    with pytest.raises(omni.InvalidRequestError, match="not an image") as refused:
        pipe.chat("refuse")
    assert refused.value.stage == "read"
    with pytest.raises(omni.RequestFailedError) as failed:
        pipe.chat("fail")
    assert (failed.value.stage, failed.value.error_type) == ("read", "ValueError")
    assert not isinstance(failed.value, omni.InvalidRequestError)
    with pytest.raises(omni.RequestTimeoutError, match="write"):
        pipe.chat(LONG, timeout=0.2)
    with pytest.raises(omni.InvalidRequestError, match="must be an OmniRequest, is a str"):
        pipe.submit("hi")  # type: ignore[arg-type]
    with pytest.raises(omni.InvalidRequestError, match="in its own words"):
        pipe.speak("hi")


def test_too_many_requests_are_refused_with_a_hint(pipe: omni.Pipe) -> None:
    streams = [pipe.chat(LONG, stream=True, modalities=["text"]) for _ in range(4)]
    next(streams[0])  # one thread: the others wait for it, admitted by their first next()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(next, each) for each in streams[1:]]
        while pipe.statistics()["coordinator"]["requests"]["running"] < 4:
            time.sleep(0.005)
        with pytest.raises(omni.OverloadedError) as full:
            pipe.chat("hi")
        assert full.value.retry_after > 0
        for each in streams:
            pipe.abort(each.request_id)
        for each in waiting:
            with pytest.raises(omni.RequestAbortedError):
                each.result()


def test_leaving_a_stream_aborts_its_request(pipe: omni.Pipe) -> None:
    before = pipe.statistics()["coordinator"]["requests"]["aborted"]
    for _ in pipe.chat(LONG, stream=True, modalities=["text"]):
        break
    closed = pipe.chat(LONG, stream=True, modalities=["text"])
    next(closed)
    closed.close()
    assert pipe.statistics()["coordinator"]["requests"]["aborted"] == before + 2
    assert list(closed) == []


def test_threads_share_a_pipe(pipe: omni.Pipe) -> None:
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda word: pipe.chat(word).text, ["a", "b", "c", "d"]))
    assert replies == ["a", "b", "c", "d"]


async def test_it_works_inside_a_running_loop(pipe: omni.Pipe) -> None:
    assert asyncio.get_running_loop().is_running()
    assert pipe.chat("in a notebook").text == "in a notebook"
