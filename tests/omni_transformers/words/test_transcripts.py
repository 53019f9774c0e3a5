"""Transcripts of models that read a recording as a prompt: language, segments, what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_transformers import checkpoint, examples, listeners
from tiny_transformers.driving import replies, running

from omni_core.api import InvalidRequestError, OmniRequest, Segment
from omni_transformers.loading import load_processor
from omni_transformers.words.recognisers import RECOGNISERS
from omni_transformers.words.steps import Text
from omni_transformers.words.transcripts import PARSE, Reading, create_recogniser

assert listeners
QWEN, MOSS, VIBE = (
    "Qwen3ASRForConditionalGeneration",
    "MossTranscribeDiarizeForConditionalGeneration",
    "VibeVoiceAsrForConditionalGeneration",
)


def read(name: str, *pieces: str, heard: bool = False) -> tuple[list[str], Reading, list[Segment]]:
    """Return what is streamed of a text's pieces, and the reading at its end."""
    reading = Reading(RECOGNISERS[name], heard)
    streamed = [reading.feed(each) for each in pieces]
    processor = load_processor(str(checkpoint(name)))
    ids = processor.tokenizer.encode("".join(pieces), add_special_tokens=False)
    writer: Any = SimpleNamespace(prompts=SimpleNamespace(processor=processor))
    rest, segments = reading.end(writer, Text("".join(pieces), ids, "stop", {}))
    return [*streamed, rest], reading, segments


def test_the_language_is_no_part_of_the_text() -> None:
    streamed, reading, _ = read(QWEN, "lang", "uage Eng", "lish<asr", "_text>Hel", "lo")
    assert (streamed, reading.text, reading.language) == (["", "", "", "Hel", "lo", ""], "Hello", "English")
    streamed, reading, _ = read(QWEN, "Hel", "lo", heard=True)
    assert (streamed, reading.text, reading.language) == (["Hel", "lo", ""], "Hello", None)
    streamed, reading, _ = read(QWEN, "lang", "uage")
    assert (streamed[-1], reading.text) == ("language", "language")  # nothing is lost of what was cut


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (MOSS, "[0.50][S01]Hello there.[1.50][1.50][S02]Yes.[2.25]"),
        (
            VIBE,
            'assistant\n[{"Start":0.5,"End":1.5,"Speaker":1,"Content":"Hello there."},'
            '{"Start":1.5,"End":2.25,"Speaker":2,"Content":"Yes."}]\n',
        ),
    ],
)
def test_segments_have_times_and_speakers(name: str, text: str) -> None:
    streamed, reading, segments = read(name, text[:9], text[9:])
    assert (streamed, reading.text) == (["", "", "Hello there. Yes."], "Hello there. Yes.")
    assert segments == [Segment("Hello there.", 0.5, 1.5, "1"), Segment(" Yes.", 1.5, 2.25, "2")]
    cut = read(name, text[:-6])[1].text
    assert cut.startswith("Hello there.")


def test_segments_are_told_when_they_are_complete() -> None:
    processor = load_processor(str(checkpoint(MOSS)))
    reading = Reading(RECOGNISERS[MOSS], heard=True, parse=getattr(processor, PARSE))
    pieces = ["[0.50][S0", "1]Hello", " there.[1.", "50][1.50]", "[S02]Yes.[2.25", "]", "[2.25][S01]a", "[x]"]
    told = [reading.chunk(each, holds=False, tells=True) for each in pieces]
    assert [each and (each.text, [one.speaker for one in each.segments]) for each in told] == [
        None, None, None, ("Hello there.", ["1"]), None, (" Yes.", ["2"]), None, None,
    ]  # fmt: skip
    rest, segments = reading.end(writing(processor), written(processor, "".join(pieces)))
    assert (rest, segments) == (
        " [2.25][S01]a[x]",
        [Segment("Hello there.", 0.5, 1.5, "1"), Segment(" Yes.", 1.5, 2.25, "2")],
    )
    whole = "".join(pieces[:-1]) + "[3.0]"
    rest, segments = Reading(RECOGNISERS[MOSS], heard=True).end(writing(processor), written(processor, whole))
    assert (rest, len(segments)) == ("Hello there. Yes. a", 3)
    rest, segments = Reading(RECOGNISERS[MOSS], heard=True).end(writing(processor), written(processor, "".join(pieces)))
    assert (rest, segments) == ("".join(pieces), [])  # malformed, and all of it


def writing(processor: Any) -> Any:
    return SimpleNamespace(prompts=SimpleNamespace(processor=processor))


def written(processor: Any, text: str) -> Text:
    return Text(text, processor.tokenizer.encode(text, add_special_tokens=False), "stop", {})


def test_a_language_and_a_hint_are_in_the_prompt() -> None:
    part = examples.part("audio")
    asked = {"language": "de", "prompt": "Köln", "max_new_tokens": 3}
    with running(create_recogniser(str(checkpoint(QWEN)))) as scheduler:
        requests = [
            OmniRequest({"messages": [{"role": "user", "content": [part]}]}, {"answer": each}) for each in (asked, {})
        ]
        [(_, told), (_, untold)] = replies(scheduler, requests)
        assert told.usage["prompt_tokens"] > untold.usage["prompt_tokens"] + 10
        assert (told.language, untold.language, told.finish_reason, told.duration) == ("de", None, "length", 0.5)
        for content, match in (
            ([part, {"type": "text", "text": "What?"}], "one recording and no text"),
            ([part, part], "one recording and no text"),
            ([{"type": "audio", "samples": np.zeros(160, np.float32), "sample_rate": 0}], "sample_rate"),
        ):
            with pytest.raises(InvalidRequestError, match=match):
                replies(scheduler, [OmniRequest({"messages": [{"role": "user", "content": content}]})])
        for wrong in ({"language": "klingon"}, {"prompt": "</s>"}):
            with pytest.raises(InvalidRequestError):
                replies(
                    scheduler, [OmniRequest({"messages": [{"role": "user", "content": [part]}]}, {"answer": wrong})]
                )


def test_a_recording_longer_than_the_processor_takes_is_refused() -> None:
    long = {"type": "audio", "samples": np.zeros(61 * 16_000, np.float32), "sample_rate": 16_000}
    request, match = (
        OmniRequest({"messages": [{"role": "user", "content": [long]}]}),
        "hears the first 60 s of a recording",
    )
    with (
        running(create_recogniser(str(checkpoint("GlmAsrForConditionalGeneration")))) as scheduler,
        pytest.raises(InvalidRequestError, match=match),
    ):
        replies(scheduler, [request])
