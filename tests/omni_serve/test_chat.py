"""Chat completions, by OpenAI's own client and by plain requests."""

from __future__ import annotations

import base64
import io
import json
import re
from typing import Any

import av
import httpx2
import numpy as np
import openai
import pytest
import soxr
from PIL import Image
from serve_stages import RATE, tone

from omni_media.api import sound as heard
from omni_serve.encoders import pcm16, whole
from omni_serve.g711 import to_law

pytestmark = pytest.mark.asyncio(loop_scope="session")

USER = {"role": "user", "content": "one two"}
SPOKEN: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "low", "format": "pcm16"}}
SOUND = pcm16(np.concatenate([tone("one", "low"), tone("two", "low")]))


async def ask(client: openai.AsyncOpenAI, text: Any = "one two", **options: Any) -> Any:
    message = {"role": "user", "content": text}
    return await client.chat.completions.create(model="tones", messages=[message], **options)


async def test_a_text_answer(client: openai.AsyncOpenAI) -> None:
    answer = await ask(client)
    assert answer.choices[0].message.content == "one two"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 2, 4)
    assert answer._request_id.startswith("req_")


@pytest.mark.parametrize("form", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
async def test_a_spoken_answer_in_every_format(client: openai.AsyncOpenAI, form: str) -> None:
    answer = await ask(client, modalities=["text", "audio"], audio={"voice": "low", "format": form})
    audio = answer.choices[0].message.audio
    assert answer.choices[0].message.content is None
    assert audio.transcript == "one two"
    data = base64.b64decode(audio.data, validate=True)
    if form == "pcm16":
        assert data == SOUND
        return
    with av.open(io.BytesIO(data)) as file:
        samples = sum(frame.samples for frame in file.decode(audio=0)) / file.streams.audio[0].rate
    assert samples == pytest.approx(len(SOUND) / 2 / RATE, abs=0.06)


async def test_a_spoken_stream_is_joined_by_the_sdk_to_the_sound_of_the_whole(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="tones", messages=[USER], stream_options={"include_usage": True}, **SPOKEN
    ) as stream:
        final = await stream.get_final_completion()
    audio = final.choices[0].message.audio
    assert audio is not None
    assert base64.b64decode(audio.data, validate=True) == SOUND
    assert audio.transcript == "one two"
    assert audio.id.startswith("audio_")
    assert final.usage is not None
    assert final.usage.total_tokens == 4


@pytest.mark.parametrize(
    ("form", "rate"), [("mp3", 16_000), ("opus", 16_000), ("opus", None), ("pcm16", 8_000), ("pcmu", None)]
)
async def test_a_stream_of_any_format_and_rate_can_be_played_as_it_comes(
    client: openai.AsyncOpenAI, form: Any, rate: int | None
) -> None:
    options: Any = {"modalities": ["text", "audio"], "audio": {"voice": "low", "format": form, "sample_rate": rate}}
    stream = await client.chat.completions.create(
        model="tones", messages=[{"role": "user", "content": "a b c d e"}], stream=True, **options
    )
    pieces = []
    async for chunk in stream:
        audio = chunk.choices[0].delta.audio
        pieces += [audio.data] if audio is not None and audio.data else []
    data = base64.b64decode("".join(pieces), validate=True)  # as the SDK joins them
    sound = np.concatenate([tone(word, "low") for word in "abcde"])
    if form in ("pcm16", "pcmu"):
        expected = pcm16(soxr.resample(sound, RATE, 8_000))
        assert data == (expected if form == "pcm16" else to_law(np.frombuffer(expected, "<i2"), "pcmu"))
        return
    out = rate or RATE
    samples, begun = heard({"data": data}, out), heard({"data": b"".join(map(base64.b64decode, pieces[:3]))}, out)
    assert len(samples) / out == pytest.approx(len(sound) / RATE, abs=0.08)
    assert len(begun) > 0.1 * out, "a part is no file"
    assert np.abs(np.fft.rfft(samples)).argmax() / len(samples) * out == pytest.approx(440, abs=5)


async def test_the_rate_of_a_whole_answer(client: openai.AsyncOpenAI) -> None:
    audio: Any = {"voice": "low", "format": "wav", "sample_rate": 8_000}
    answer = await ask(client, modalities=["text", "audio"], audio=audio)
    sound = soxr.resample(np.concatenate([tone("one", "low"), tone("two", "low")]), RATE, 8_000)
    assert base64.b64decode(answer.choices[0].message.audio.data) == whole("wav", [sound], 8_000)
    for wrong in ({**audio, "sample_rate": 4_000}, {**audio, "format": "opus", "sample_rate": 22_050}):
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(client, modalities=["text", "audio"], audio=wrong)
        assert raised.value.param == "audio.sample_rate"


async def test_the_order_of_a_spoken_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tones", messages=[USER], stream=True, stream_options={"include_usage": True}, **SPOKEN
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert (deltas[1].audio.id is not None, deltas[1].audio.transcript, deltas[1].audio.data) == (True, "", None)
    middle = [delta.audio for delta in deltas[2:-2]]
    assert "".join(audio.transcript or "" for audio in middle) == "one two"
    pieces = [base64.b64decode(audio.data, validate=True) for audio in middle if audio.data]
    assert b"".join(pieces) == SOUND
    assert [len(piece) % 6 for piece in pieces[:-1]] == [0] * (len(pieces) - 1)
    assert deltas[-2].audio.expires_at is not None
    assert deltas[-2].audio.data is None
    assert deltas[-1].audio is None
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_a_text_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="tones", messages=[USER], stream=True)
    chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "one", " two", None]
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_turn_refers_to_an_earlier_answer_by_its_id(client: openai.AsyncOpenAI) -> None:
    first = await ask(client, **SPOKEN)
    identity = first.choices[0].message.audio.id
    history = [USER, {"role": "assistant", "audio": {"id": identity}}, {"role": "user", "content": "history"}]
    answer = await client.chat.completions.create(model="tones", messages=history)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "user=one two assistant=one two"


async def test_an_unknown_answer_is_named(client: openai.AsyncOpenAI) -> None:
    history = [USER, {"role": "assistant", "audio": {"id": "audio_x"}}, USER]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tones", messages=history)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.param) == ("audio_not_found", "messages[1].audio.id")


async def test_stop_length_and_seed_reach_the_stage_that_writes(client: openai.AsyncOpenAI) -> None:
    assert (await ask(client, "a b c", stop=["c"])).choices[0].message.content == "a b"
    cut = await ask(client, "a b c", max_completion_tokens=2)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("a b", "length")
    told = await ask(
        client, "params", seed=7, temperature=0.5, extra_body={"stage_sampling": {"speaker": {"temperature": 1.5}}}
    )
    read = json.loads(told.choices[0].message.content)
    assert read["params"] == {"writer": {"temperature": 0.5, "seed": 7}, "speaker": {"temperature": 1.5}}
    told = await ask(client, "params", extra_body={"mm_processor_kwargs": {"use_audio_in_video": True}})
    assert json.loads(told.choices[0].message.content)["metadata"] == {"use_audio_in_video": True}


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"n": 17}, "n", "equal to 16"),
        ({"logprobs": True}, "logprobs", "only False"),
        ({"logit_bias": {"1": 2}}, "logit_bias", "only {}"),
        ({"response_format": {"type": "json_object"}}, "response_format", "only"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"audio": {"voice": "low", "format": "wav"}}, "audio", "modalities"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "hihg"}}, "audio.voice", "did you mean 'high'"),
        ({"temperature": 3}, "temperature", "0 to 2"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"stage_sampling": {"wirter": {}}}, "stage_sampling.wirter", "did you mean 'writer'"),
        ({"modalities": ["video"]}, "modalities[0]", "text"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "messages[0].role", "one of"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "non-empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "path": "/etc/passwd"}]}]},
         "messages[0].content[0].type", "one of"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]}]},
         "messages[0].content[0].image_url.url", "must be a URL"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]},
         "messages[0].content[0].image_url.url", "cannot be named"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://localhost/x"}}]}]},
         "messages[0].content[0].image_url.url", "not fetched"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "!", "format": "wav"}}]}]},
         "messages[0].content[0].input_audio.data", "base64"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}]}]},
         "messages[0].content[0]", "not a recording"),
        ({"messages": []}, "messages", "at least 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "1 to 10000"),
        ({"stage_sampling": {"writer": {"temperature": 9}}}, "stage_sampling.writer.temperature", "0 to 2"),
        ({"mm_processor_kwargs": {"pause": -1}}, "pause", "0 to 100"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"n": True}, "n", "integer"),
        ({"modalities": ["text", "audio"], "audio": {"voice": 1}}, "audio.voice", "string"),
        ({"messages": [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}]},
         "messages[0].content[0].type", "one of"),
        ({"temperature": 0.5, "extra_body": {"temperature": 1}}, "extra_body.temperature", "give one"),
        ({"extra_body": {"stream": True}}, "extra_body.stream", "beside extra_body"),
        ({"extra_body": {"messages": []}}, "extra_body.messages", "beside extra_body"),
        ({"extra_body": {"temprature": 1}}, "temprature", "did you mean"),
        ({"stage_sampling": {"writer": {"seed": 1}, "text": {"seed": 2}}}, "stage_sampling.text.seed", "given twice"),
        ({"pause": 0, "mm_processor_kwargs": {"pause": 1}}, "mm_processor_kwargs.pause", "given twice"),
        ({"mm_processor_kwargs": {"pause": 1}, "pause": 0}, "pause", "given twice"),
    ],
)  # fmt: skip
async def test_what_is_not_honoured_is_named(
    http: httpx2.AsyncClient, given: dict[str, Any], param: str | None, words: str
) -> None:
    answer = await http.post("/v1/chat/completions", json={"model": "tones", "messages": [USER], **given})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    if param is not None:
        assert error["param"] == param
    assert answer.headers["x-should-retry"] == "false"


async def test_what_changes_nothing_is_accepted(http: httpx2.AsyncClient) -> None:
    given = {"n": 1, "user": "me", "store": False, "logprobs": False, "top_logprobs": None, "service_tier": "auto"}
    given |= {"n": 1.0, "stream_options": None, "messages": [{"role": "user", "content": [{"type": "text", "text": "x",
              "prompt_cache_breakpoint": {"mode": "explicit"}, "cache_control": None}]}]}  # fmt: skip
    given |= {"metadata": {"a": "b"}, "response_format": {"type": "text"}, "presence_penalty": 0, "tool_choice": "auto"}
    answer = await http.post("/v1/chat/completions", json={"model": "tones", "messages": [USER], **given})
    assert answer.status_code == 200, answer.text


async def test_an_extra_body_is_read_where_it_contradicts_nothing(http: httpx2.AsyncClient) -> None:
    body = {"model": "tones", "messages": [{"role": "user", "content": "params"}], "temperature": 0.5}
    for extra in ({"temperature": 0.5}, {"seed": None}, {}):
        answer = await http.post("/v1/chat/completions", json={**body, "extra_body": extra})
        read = json.loads(answer.json()["choices"][0]["message"]["content"])
        assert read["params"] == {"writer": {"temperature": 0.5}}
    speech = {"model": "tones", "input": "one", "pause": 0, "extra_body": {"pause": 0.01}}
    answer = await http.post("/v1/audio/speech", json=speech)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "extra_body.pause")


async def test_media_reach_the_pipeline(client: openai.AsyncOpenAI) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PNG")
    picture, sound = stream.getvalue(), whole("wav", [tone("x")], RATE)
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(picture).decode()}},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}},
    ]
    answer = await ask(client, parts)
    assert answer.choices[0].message.content == f"look image:{len(picture)} audio:{len(sound)}"


TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


async def test_calls_of_tools_are_read_out_of_the_text(client: openai.AsyncOpenAI) -> None:
    answer = await ask(client, "rain", tools=[TOOL])
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls[0].function.name == "look_up"
    assert json.loads(message.tool_calls[0].function.arguments) == {"text": "rain"}
    assert message.content.strip() == "So:"
    history = [USER, message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "wet"}]
    answer = await client.chat.completions.create(model="tones", messages=history)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "wet"


async def test_calls_of_tools_are_streamed(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="tones", messages=[USER], tools=[TOOL]) as stream:  # type: ignore[list-item]
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "look_up"
    assert final.choices[0].finish_reason == "tool_calls"


async def test_a_failure_in_a_stage_is_explained_in_the_log_only(
    client: openai.AsyncOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(client, "fail")
    assert caught.value.code == "stage_failed"
    message = caught.value.body["message"]  # type: ignore[index]
    found = re.fullmatch(r"The server failed; id (\w{16})", message)
    assert found is not None
    (line,) = [each for each in caplog.messages if found[1] in each]
    for word in ("'understand'", "RuntimeError: told to fail", "Traceback", "serve_stages.py"):
        assert word in line
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_what_a_stage_refuses_is_the_client_s_error(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):  # nothing was sent yet: the status tells it in both
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, "refuse", stream=stream)
        assert caught.value.param == "messages[0].content"


async def test_an_unknown_model_and_an_alias(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="tonse", messages=[USER])
    assert "did you mean 'tones'" in str(caught.value)
    assert caught.value.code == "model_not_found"
    answer = await client.chat.completions.create(model="tts-1", messages=[USER])
    assert answer.model == "tts-1"


async def test_a_body_that_is_no_json(http: httpx2.AsyncClient) -> None:
    kind = {"content-type": "application/json"}
    answer = await http.post("/v1/chat/completions", content=b'{"model": ', headers=kind)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    answer = await http.post("/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    answer = await http.post("/v1/chat/completions", content=b"{}", headers=kind)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    for number in ("NaN", "-Infinity", " [1, NaN ]"):
        body = f'{{"model": "tones", "messages": [{{"role": "user", "content": "[NaN, -Infinity"}}], "metadata": {number}}}'
        answer = await http.post("/v1/chat/completions", content=body.encode(), headers=kind)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
        answer = await http.post("/v1/chat/completions", content=body.replace(number, "{}").encode(), headers=kind)
        assert answer.status_code == 200


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("calls", ["abc", [1], [{"id": "a"}], [{**CALL, "id": 1}], [{**CALL, "function": "f"}]])
async def test_calls_of_another_shape_are_refused(client: openai.AsyncOpenAI, calls: Any) -> None:
    messages: Any = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    with pytest.raises(openai.BadRequestError, match=r"messages\[1\].tool_calls: must be a list of"):
        await client.chat.completions.create(model="tones", messages=messages)


async def test_a_result_without_the_id_of_its_call_is_refused(client: openai.AsyncOpenAI) -> None:
    messages: Any = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "x"},
    ]
    with pytest.raises(openai.BadRequestError, match=r"messages\[2\].tool_call_id: must be the id of a call"):
        await client.chat.completions.create(model="tones", messages=messages)


async def test_a_result_of_no_call_is_refused(client: openai.AsyncOpenAI) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "a", "content": "x"}
    for messages, where in (
        ([USER, result], r"messages\[1\].tool_call_id"),
        ([USER, called, {**result, "tool_call_id": "b"}], r"messages\[2\].tool_call_id"),
        ([USER, called, USER, result], r"messages\[3\].tool_call_id"),
        ([{**USER, "tool_calls": [CALL]}], r"messages\[0\].tool_calls"),
    ):
        with pytest.raises(openai.BadRequestError, match=where):
            await client.chat.completions.create(model="tones", messages=messages)  # type: ignore[arg-type]
