"""From text and recordings to sound, through the whole pipeline: equal to the reference, streamed or not, alone or
together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import soundfile
import torch
from fish_cases import CASES, REFERENCE_TEXT, SAMPLED, SAMPLED_CASES, sound
from fish_harness import collect, fails, pipeline, request_of, sampled

from omni_core.client import AsyncPipe, open_async
from omni_core.errors import RequestAbortedError
from omni_core.protocol.outputs import AudioResult
from omni_fish_s2.codec.memory import StreamState
from omni_fish_s2.vocoder import Vocoder

Golden = dict[str, dict[str, np.ndarray]]
WAVE_TOLERANCE = 1e-4
WITHOUT_VOICES = [name for name, case in CASES.items() if not case.get("voices")]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("voices") / "voice.wav"
    soundfile.write(path, sound(40_000), 44_100, subtype="FLOAT")
    return str(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tiny: dict[str, Path]) -> AsyncIterator[AsyncPipe]:
    """Three processes; parts of at most 90 bytes are spoken in one turn, as in the golden case of several turns."""
    async with open_async(pipeline(tiny["a"], segment_bytes=90, max_reference_seconds=20.0)) as opened:
        yield opened


def decoded(checkpoint: Path, codes: torch.Tensor) -> np.ndarray:
    """The whole waveform in one pass (the codec itself is compared with the reference in test_parity.py)."""
    wave: np.ndarray = Vocoder(str(checkpoint)).decode([(StreamState(), codes)])[0].numpy()
    return wave


async def equals_the_reference(client: AsyncPipe, checkpoint: Path, golden: dict[str, np.ndarray]) -> None:
    for name in WITHOUT_VOICES:
        answer: AudioResult = (await client.submit(request_of(CASES[name])))["vocoder"]
        assert np.array_equal(answer.codes, golden[f"{name}.codes"]), name
        assert answer.sample_rate == 44_100
        np.testing.assert_allclose(answer.samples, decoded(checkpoint, answer.codes), atol=WAVE_TOLERANCE, rtol=0)
    for name in set(SAMPLED_CASES) & set(WITHOUT_VOICES):
        answer = (await client.submit(sampled(CASES[name], SAMPLED["default"]["seed"])))["vocoder"]
        assert np.array_equal(answer.codes, golden[f"{name}/default.codes"]), name


async def the_stream_is_the_result(client: AsyncPipe, checkpoint: Path, initial_chunk: int, chunk: int) -> None:
    pieces, final = await collect(client, request_of(CASES["plain"]))
    whole = (await client.submit(request_of(CASES["plain"])))["vocoder"]
    streamed = np.concatenate([np.asarray(piece.samples) for piece in pieces])
    assert np.array_equal(streamed, np.asarray(final.samples))
    assert np.array_equal(np.asarray(final.samples), np.asarray(whole.samples))
    frames = len(final.codes)
    assert len(streamed) == 2048 * frames
    np.testing.assert_allclose(streamed, decoded(checkpoint, final.codes), atol=2e-5, rtol=0)
    expected = [min(initial_chunk, frames)]
    while sum(expected) < frames:
        growing = max(initial_chunk, sum(expected))
        expected.append(min(chunk, growing, frames - sum(expected)))
    assert [len(piece.samples) // 2048 for piece in pieces] == expected


@pytest.mark.asyncio(loop_scope="module")
async def test_it_equals_the_reference(client: AsyncPipe, tiny: dict[str, Path], golden: Golden) -> None:
    await equals_the_reference(client, tiny["a"], golden["a"])


@pytest.mark.asyncio(loop_scope="module")
async def test_the_stream_is_the_result(client: AsyncPipe, tiny: dict[str, Path]) -> None:
    await the_stream_is_the_result(client, tiny["a"], 4, 20)


@pytest.mark.full
@pytest.mark.parametrize(("shape", "initial_chunk", "chunk"), [("b", 1, 3), ("c", 7, 5)])
async def test_other_checkpoints_and_strides_in_one_process(
    shape: str, initial_chunk: int, chunk: int, tiny: dict[str, Path], golden: Golden
) -> None:
    options = {"segment_bytes": 90, "initial_chunk": initial_chunk, "chunk": chunk}
    async with open_async(pipeline(tiny[shape], processes="one", **options)) as client:
        await equals_the_reference(client, tiny[shape], golden[shape])
        await the_stream_is_the_result(client, tiny[shape], initial_chunk, chunk)


@pytest.mark.asyncio(loop_scope="module")
async def test_first_audio_leaves_before_the_last_code(client: AsyncPipe) -> None:
    """Its stage is far from done when the first sound arrives: an abort then leaves the rest unspoken."""
    request = request_of({"text": "A long one.", "max_new_tokens": 2000})
    request.params["semantic"] = {"temperature": 1.9, "top_p": 1.0, "top_k": 0, "max_new_tokens": 2000}
    before = (await client.statistics())["semantic_ar"]["semantic_ar"]["tokens"]
    for seed in range(50):
        request.params["seed"] = seed
        heard = 0
        with pytest.raises(RequestAbortedError):
            async for event in client.stream(request, f"long-{seed}"):
                if event.final:
                    raise RequestAbortedError("it ended by itself")
                heard += len(event.data.samples) // 2048
                await client.abort(f"long-{seed}")
        if heard == 4:
            break
    tokens = (await client.statistics())["semantic_ar"]["semantic_ar"]["tokens"] - before
    assert 0 < heard < 100
    assert tokens < 2000


@pytest.mark.asyncio(loop_scope="module")
async def test_a_voice_changes_the_speech_and_is_encoded_once(client: AsyncPipe, recording: str) -> None:
    async def counters() -> tuple[float, float]:
        stage = (await client.statistics())["preprocessing"]["preprocessing"]
        return stage["voices_encoded"], stage["voices_found"]

    encoded, found = await counters()
    samples = sound(50_000)[8_000:]
    voices = [{"samples": samples, "sample_rate": 44_100, "text": REFERENCE_TEXT}]
    first = (await client.submit(request_of(CASES["plain"], voices)))["vocoder"]
    assert await counters() == (encoded + 1, found)
    second = (await client.submit(request_of(CASES["plain"], voices)))["vocoder"]
    assert await counters() == (encoded + 1, found + 1)
    assert np.array_equal(first.codes, second.codes)
    plain = (await client.submit(request_of(CASES["plain"])))["vocoder"]
    other = (await client.submit(request_of(CASES["plain"], [{"path": recording, "text": REFERENCE_TEXT}])))["vocoder"]
    assert not np.array_equal(plain.codes, first.codes)
    assert not np.array_equal(other.codes, first.codes)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_speaker_is_a_tag_before_the_text(client: AsyncPipe) -> None:
    by_name = await client.submit(request_of(CASES["plain"], metadata={"speaker": "1"}))
    tagged = await client.submit(request_of({"text": f"<|speaker:1|>{CASES['plain']['text']}"}))
    plain = await client.submit(request_of(CASES["plain"]))
    assert np.array_equal(by_name["vocoder"].codes, tagged["vocoder"].codes)
    assert not np.array_equal(by_name["vocoder"].codes, plain["vocoder"].codes)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_long_text_is_spoken_in_turns_that_share_a_context(client: AsyncPipe) -> None:
    sentences = [
        "The fox is red.",
        "The house is blue and stands by the sea, far from the city.",
        "Nobody knows why it sleeps.",
    ]
    text = " ".join(sentences)
    assert len(text) > 90
    whole = (await client.submit(request_of({"text": text, "max_new_tokens": 12})))["vocoder"]
    alone = (await client.submit(request_of({"text": " ".join(sentences[:2]), "max_new_tokens": 12})))["vocoder"]
    rest = (await client.submit(request_of({"text": sentences[2], "max_new_tokens": 12})))["vocoder"]
    begin = len(alone.codes)
    assert np.array_equal(whole.codes[:begin], alone.codes)
    assert len(whole.codes) > begin
    assert not np.array_equal(whole.codes[begin:], rest.codes), "the second turn did not hear the first"


BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "empty text": ({"text": ""}, ["messages[0].content", "no text"]),
    "blank text": ({"text": " \n\t"}, ["no text"]),
    "a tag alone": ({"text": "<|speaker:0|> "}, ["no text"]),
    "100,000 characters": ({"text": "Hello. " * 14_286}, ["100002 characters", "limit of 10000"]),
    "a reserved marker": ({"text": "Hello<|im_end|>"}, ["'<|im_end|>'", "reserved"]),
    "a semantic token": ({"text": "<|semantic:5|>"}, ["'<|semantic:5|>'"]),
    "an image": ({"text": [{"type": "image", "path": "x.png"}]}, ["content[0].type", "image"]),
    "no parts": ({"text": []}, ["content"]),
    "text that is none": ({"text": [{"type": "text", "text": 5}]}, ["content[0].text"]),
    "a wrong modality": ({"modalities": ["text"]}, ["modalities", "offers: audio"]),
    "a temperature for text": ({"params": {"thinker": {"temperature": 1.0}}}, ["params.thinker", "semantic"]),
    "too hot": ({"params": {"semantic": {"temperature": 3.0}}}, ["params.semantic.temperature", "a number, 0 to 2"]),
    "a misspelt parameter": ({"params": {"semantic": {"top_pp": 1.0}}}, ["top_pp", "did you mean 'top_p'"]),
    "a penalty": ({"params": {"semantic": {"repetition_penalty": 1.1}}}, ["repetition_penalty", "no such"]),
    "a seed that is none": ({"params": {"seed": "x"}}, ["params.seed"]),
    "a speaker by name": ({"metadata": {"speaker": "ethan"}}, ["metadata.speaker", "numbers"]),
    "a speaker by a very long number": ({"metadata": {"speaker": "9" * 5000}}, ["metadata.speaker", "numbers"]),
    "two ways to name a speaker": ({"text": "<|speaker:1|>Hi.", "metadata": {"speaker": "0"}}, ["one or the other"]),
    "a recording without text": ({"references": [{"path": "RECORDING"}]}, ["references[0].text"]),
    "a recording with blank text": ({"references": [{"path": "RECORDING", "text": " "}]}, ["references[0].text"]),
    "a marker in its text": ({"references": [{"path": "RECORDING", "text": "<|voice|>"}]}, ["references[0].text", "reserved"]),
    "text without a recording": ({"references": [{"text": "Hello."}]}, ["references[0]", "needs `path`"]),
    "a file that is no sound": ({"references": [{"path": __file__, "text": "x"}]}, ["test_pipeline.py", "not an audio file"]),
    "a reference of 10 minutes": ({"references": [{"samples": np.zeros(600_000), "sample_rate": 1_000, "text": "x"}]},
                                  ["600.0 s", "limit of 20 s", "max_reference_seconds"]),
    "six references": ({"references": [{"path": "RECORDING", "text": "x"}] * 6}, ["at most 5"]),
    "references that are none": ({"references": "voice.wav"}, ["inputs.references"]),
    "a reference that is none": ({"references": ["voice.wav"]}, ["references[0]"]),
}  # fmt: skip


@pytest.mark.asyncio(loop_scope="module")
async def test_bad_requests_are_named_and_do_not_affect_others(client: AsyncPipe, recording: str) -> None:
    wrong = []
    for name, (change, words) in BAD.items():
        change = dict(change)
        references = change.pop("references", None)
        text = change.pop("text", "Hello.")
        request = request_of({"text": text}, **change)
        if references is not None:
            request.inputs["references"] = (
                [
                    {**each, "path": recording} if isinstance(each, dict) and each.get("path") == "RECORDING" else each
                    for each in references
                ]
                if isinstance(references, list)
                else references
            )
        message = await fails(client, request)
        wrong += [f"{name}: {word!r} is not in: {message}" for word in words if word not in message]
    assert not wrong, "\n".join(wrong)
    for messages in ([], "hello", [{"role": "user"}], [{"role": "assistant", "content": "x"}], ["x"]):
        request = request_of({"text": "x"})
        request.inputs = {"messages": messages}
        assert "messages" in await fails(client, request)
    request.inputs = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "x"}]}
    assert "system" in await fails(client, request)
    assert (await client.submit(request_of(CASES["plain"])))["vocoder"].samples.size > 0


@pytest.mark.asyncio(loop_scope="module")
async def test_speech_that_ends_at_once_is_silence_of_no_length(client: AsyncPipe) -> None:
    answer = (await client.submit(request_of({"text": "Hello.", "max_new_tokens": 1})))["vocoder"]
    assert len(answer.samples) == 0
    assert answer.codes.shape == (0, 10)
