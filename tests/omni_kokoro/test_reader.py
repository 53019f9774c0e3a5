"""The stage that pronounces: texts, streams, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.api import IncomingMessage, OmniRequest, StagePayload, TextChunk
from omni_kokoro.reader import Reader, create_reader
from omni_testing.ours.kokoro import ReaderConformance
from omni_testing.scheduler import Harness

needs_espeak = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")


class TestReader(ReaderConformance):
    pass


class Asking:
    """A reader, and what it says to requests."""

    def __init__(self, reader: Reader) -> None:
        self._harness = Harness(reader, lambda request_id, data: data)

    def read(
        self, request_id: str, texts: Any, params: Any = None, speaker: str | None = None, composed: bool = False
    ) -> tuple[list[Any], Any]:
        """Return the sentences of a text, or of one in chunks, which another pipeline may write, and the end."""
        stream = isinstance(texts, list)
        messages = [] if stream else [{"role": "user", "content": texts}]
        metadata = {"speaker": speaker} if speaker else {}
        inputs = None if composed else {"messages": messages}
        request = OmniRequest(
            inputs, {"speech": params or {}}, metadata=metadata, composed={"modalities": None} if composed else None
        )
        self._put(request_id, "new_request", StagePayload(request_id, request, None), request)
        for each in texts if stream else []:
            self._put(request_id, "stream_chunk", TextChunk(each), request)
        self._put(request_id, "stream_done", None, request)
        end = self._harness.ended(request_id)
        return [each.data for each in self._harness.of(request_id) if each.type == "stream"], end

    def _put(self, request_id: str, kind: Any, data: Any, request: OmniRequest) -> None:
        self._harness.submit(request_id, IncomingMessage(request_id, kind, data, None, None, request.without_inputs()))

    def close(self) -> None:
        self._harness.scheduler.stop()
        self._harness.thread.join(20)


@pytest.fixture
def asking(tiny: Path) -> Any:
    made = Asking(create_reader(str(tiny)))
    yield made
    made.close()


PHONEMES = {"phonemes": True}


def test_a_missing_program_is_told_at_the_start(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    create_reader(str(tiny))
    assert "espeak-ng is not installed (apt-get install espeak-ng" in caplog.text
    caplog.clear()
    create_reader(str(tiny), spelling="misaki")
    assert not caplog.text


def plain(sentences: list[Any]) -> list[Any]:
    return [(each["ids"], each["style"].tolist(), each["speed"], each["seed"], each["words"]) for each in sentences]


def test_another_pipeline_may_write_the_text_or_nothing(asking: Asking) -> None:
    chunks = ["hˈɛl", "O ðˈɛɹ."]
    sentences, _ = asking.read("client", chunks, PHONEMES)
    found, end = asking.read("part", chunks, PHONEMES, composed=True)
    assert plain(found) == plain(sentences) != []
    assert end.type == "result"
    assert asking.read("silent", [], PHONEMES, composed=True)[1].type == "result"
    assert asking.read("nothing", [], PHONEMES)[1].type == "error"


def test_a_text_is_sentences_with_the_voice_of_their_lengths(asking: Asking) -> None:
    sentences, end = asking.read("r", "hˈɛlO ðˈɛɹ.\n" + "ɑ ɛ " * 30, {**PHONEMES, "speed": 2.0, "seed": 5})
    assert end.type == "result"
    assert [len(each["ids"]) for each in sentences] == [11, 119]
    assert [(each["speed"], each["seed"]) for each in sentences] == [(2.0, 5), (2.0, 6)]
    assert sentences[0]["words"] == [["hˈɛlO", 0, 5], ["ðˈɛɹ.", 6, 5]]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_no_cut_of_a_text_changes_what_is_said(cut: list[int]) -> None:
    from omni_testing.ours.kokoro import TEXTS, checkpoint

    text, pieces = TEXTS[0], []
    rest = text
    for size in cut:
        pieces.append(rest[:size])
        rest = rest[size:]
    asking = Asking(create_reader(checkpoint()))
    try:
        whole, streamed = asking.read("w", text, PHONEMES)[0], asking.read("s", [*pieces, "", rest], PHONEMES)[0]
    finally:
        asking.close()
    assert whole
    assert plain(whole) == plain(streamed)


@pytest.mark.parametrize(
    ("text", "params", "speaker", "message"),
    [
        ("hˈɛlO", PHONEMES, "af_hart", "did you mean 'af_heart'"),
        ("hˈɛlO", {"language": "klingon"}, None, "'klingon' is not spoken"),
        ("hˈɛlO", {"language": "en-uk"}, None, "did you mean 'en-us'"),
        ("hˈɛlO 漢", PHONEMES, None, r"'漢' \(U\+6F22\)"),
        ("", PHONEMES, None, "nothing to speak"),
        (["", " "], PHONEMES, None, "nothing to speak"),
        ("?!", PHONEMES, None, "nothing to speak"),
        ("ɑ " * 50_001, PHONEMES, None, "over the limit of 100000 characters"),
        ([{"type": "image_url"}], PHONEMES, None, "takes nothing else"),
    ],
)
def test_what_cannot_be_spoken_is_refused(asking: Asking, text: Any, params: Any, speaker: Any, message: str) -> None:
    if isinstance(text, list) and isinstance(text[0], dict):
        request = OmniRequest({"messages": [{"role": "user", "content": text}]}, {"speech": params})
        asking._put("r", "new_request", StagePayload("r", request, None), request)
        asking._put("r", "stream_done", None, request)
        end = asking._harness.ended("r")
    else:
        end = asking.read("r", text, params, speaker)[1]
    assert end.type == "error"
    with pytest.raises(type(end.data), match=message):
        raise end.data


def test_50_000_characters_are_all_spoken(asking: Asking) -> None:
    text = "ɑlˈɔŋ sˈɛntəns əv fˈIv ʃˈɔɹt wˈɜɹdz. " * (50_000 // 37 + 1)
    sentences, end = asking.read("r", text, PHONEMES)
    assert end.type == "result"
    said = sum(len(each["words"]) for each in sentences)
    assert said == len(text.split())
    assert max(len(each["ids"]) for each in sentences) <= 510


@needs_espeak
def test_a_text_is_pronounced_in_the_language_of_its_voice(asking: Asking) -> None:
    american, british = (asking.read(each, "better", speaker=each)[0][0]["ids"] for each in ("af_heart", "bf_emma"))
    french = asking.read("f", "un chat", speaker="ff_siwis")[0][0]
    assert american != british
    assert [each[0] for each in french["words"]] == ["un", "chat"]
    assert asking.read("g", "better", {"language": "en-gb"}, "af_heart")[0][0]["ids"] == british


@needs_espeak
def test_a_text_of_emoji_alone_is_refused(asking: Asking) -> None:
    assert "nothing to speak" in str(asking.read("r", "😀 🎉")[1].data)
    sentences, _ = asking.read("s", "Yes 😀!")
    assert [each[0] for each in sentences[0]["words"]] == ["Yes"]


@pytest.mark.parametrize(("language", "message"), [("en-us", "apt-get install espeak-ng"), ("ja", "misaki")])
def test_a_missing_program_is_told_with_what_installs_it(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, language: str, message: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert message in str(asking.read("r", "Hello", {"language": language})[1].data)
