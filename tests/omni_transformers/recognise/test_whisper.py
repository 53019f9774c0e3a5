"""Whisper: what transformers' own ``generate()`` writes, window by window, alone and beside others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_transformers import checkpoint
from tiny_transformers.driving import replies, running, send
from tiny_transformers.tiny_whisper import hear, tone, whisper
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from omni_core.api import InvalidRequestError, Scheduler, Transcript, TranscriptChunk
from omni_testing.outputs import check_transcript
from omni_torch.quantization import packed_linear
from omni_transformers.loading import load_model
from omni_transformers.pipeline import interface
from omni_transformers.recognise.whisper import TEMPERATURES, create_whisper
from omni_transformers.recognise.whisper_windows import THRESHOLDS


@pytest.fixture(scope="module")
def folder() -> Path:
    return checkpoint("WhisperForConditionalGeneration")


@pytest.fixture(scope="module")
def scheduler(folder: Path) -> Iterator[Scheduler]:
    with running(create_whisper(str(folder))) as scheduler:
        yield scheduler


class Reference:
    """Transformers' own Whisper of a folder."""

    def __init__(self, folder: Path) -> None:
        self.model, self.processor = (
            kind.from_pretrained(folder) for kind in (WhisperForConditionalGeneration, WhisperProcessor)
        )
        told = self.model.generation_config
        self.limits = {name: getattr(told, name, usual) for name, usual in THRESHOLDS.items()}
        for name in self.limits:  # with these in its config, transformers writes no short recording
            setattr(told, name, None)

    def short(self, samples: np.ndarray, **given: Any) -> list[list[int]]:
        """Return the tokens of a recording of one window at each temperature, one after the other."""
        inputs = self.processor(samples, sampling_rate=16_000, return_tensors="pt")
        given |= {"return_timestamps": False, "top_k": 0, "force_unique_generate_call": True}
        prompt = len(given.get("prompt_ids", ())) + (4 if self.model.generation_config.is_multilingual else 2)
        torch.manual_seed(0)
        with torch.inference_mode():
            made = [self.model.generate(**inputs, temperature=each, **given) for each in TEMPERATURES]
        return [each[0, prompt:].tolist() for each in made]

    def long(self, samples: np.ndarray, temperature: Any = TEMPERATURES, **given: Any) -> Any:
        """Return the segments of a recording of any length."""
        inputs = self.processor(
            samples,
            sampling_rate=16_000,
            return_tensors="pt",
            truncation=False,
            padding="longest",
            return_attention_mask=True,
        )
        torch.manual_seed(0)
        with torch.inference_mode():
            made = self.model.generate(
                **inputs,
                return_timestamps=True,
                return_segments=True,
                top_k=0,
                temperature=temperature,
                **self.limits,
                **given,
            )
        return [each for each in made["segments"][0] if self.text(each["tokens"].tolist()).strip()]

    def text(self, ids: list[int]) -> str:
        text: str = self.processor.decode(ids, skip_special_tokens=True)
        return text


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def heard(scheduler: Scheduler, request: Any) -> tuple[list[TranscriptChunk], Transcript]:
    """Return what one request streams, and its transcript; they must agree."""
    [(chunks, result)] = replies(scheduler, [request])
    check_transcript(chunks, result, request.params["listen"].get("timestamps", "none"))
    return chunks, result


@pytest.mark.parametrize("given", [{}, {"language": "de", "task": "translate"}, {"language": "JA"}, {"prompt": "abc"}])
def test_a_window_is_written_as_by_generate_and_tentative_by_token(
    scheduler: Scheduler, reference: Reference, given: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"task": "transcribe", **given}
    if "prompt" in asked:
        asked["prompt_ids"] = reference.processor.get_prompt_ids(asked.pop("prompt"), return_tensors="pt")
    for number in range(2):
        tried = reference.short(tone(1.5, number), **asked)
        chunks, result = heard(scheduler, hear(tone(1.5, number), **given))
        counts = [*accumulate(map(len, tried))]
        ids = tried[
            counts.index(result.usage["completion_tokens"])
        ]  # those of the temperatures up to the last that was tried
        assert result.text == reference.text(ids).strip() != ""
        tentative = [each.tentative for each in chunks if each.tentative]
        assert len(tentative) > 1
        assert [each.text for each in chunks if each.text] == [result.text]
        assert tentative[-1] == result.text
        assert (result.finish_reason, result.duration, result.segments) == ("stop", 1.5, [])
        assert result.language == given.get("language", result.language or "").lower() in ("en", "de", "ja")


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_windows_follow_the_rule_of_generate_for_long_recordings(
    scheduler: Scheduler, reference: Reference, temperature: float
) -> None:
    expected = reference.long(tone(7.3, 1), temperature or TEMPERATURES, task="transcribe")
    _, result = heard(scheduler, hear(tone(7.3, 1), timestamps="segment", temperature=temperature))
    assert [each.token_ids for each in result.segments] == [each["tokens"].tolist() for each in expected]
    starts = [min(7.3, float(each["start"])) for each in expected]
    assert [each.start for each in result.segments] == pytest.approx(starts)
    ends = [min(7.3, float(each["end"])) for each in expected]
    assert [each.end for each in result.segments] == pytest.approx(ends)
    if not temperature:
        assert {each.temperature for each in result.segments} > {0.0}  # some windows were written again, others not
    _, plain = heard(scheduler, hear(tone(7.3, 1), temperature=temperature))
    assert (plain.text, plain.segments) == (result.text, [])


def test_words_have_the_times_of_their_tokens(scheduler: Scheduler, reference: Reference, folder: Path) -> None:
    expected = reference.long(tone(5.0, 2), task="transcribe", return_token_timestamps=True)
    _, result = heard(scheduler, hear(tone(5.0, 2), timestamps="word"))
    assert [each.token_ids for each in result.segments] == [each["tokens"].tolist() for each in expected]
    assert "".join(each.text for each in result.words) == result.text.replace(" ", "")
    known = np.concatenate([each["token_timestamps"].numpy() for each in expected])
    assert all(np.abs(known - each.end).min() < 1e-4 for each in result.words)
    model = load_model(str(folder), "auto", "cpu")
    assert model.config._attn_implementation == "sdpa"  # other requests are computed as before


def test_words_have_times_where_weights_are_packed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 1)
    with running(create_whisper(str(folder))) as scheduler:
        _, result = heard(scheduler, hear(tone(1.0), timestamps="word"))
    assert result.words


def test_requests_at_once_are_written_as_alone(scheduler: Scheduler) -> None:
    asked = [
        hear(tone(1.2, 0)),
        hear(tone(5.0, 1), timestamps="word"),
        hear(tone(1.2, 2), temperature=0.9, seed=3),
        hear(tone(5.0, 3), timestamps="segment", prompt="x"),
    ]
    alone = [replies(scheduler, [each])[0] for each in asked]
    together = replies(scheduler, asked)
    assert together == alone
    [(_, other)] = replies(scheduler, [hear(tone(1.2, 2), temperature=0.9, seed=4)])
    assert other.text != alone[2][1].text


def test_an_abort_ends_it_between_two_tokens(folder: Path) -> None:
    before = threading.active_count()
    with running(create_whisper(str(folder))) as scheduler:
        send(scheduler, "long", hear(tone(120.0), timestamps="segment"))
        assert scheduler.outbox.get(60) is not None
        scheduler.abort("long")
        send(scheduler, "short", hear(tone(1.0)))
        while (message := scheduler.outbox.get(60)) is not None and message.type != "result":
            assert message.type == "stream"  # some of the long one may be there
        assert message is not None
        assert message.request_id == "short"
    assert threading.active_count() == before


def test_the_checkpoint_s_thresholds_say_what_is_written_again(tmp_path: Path) -> None:
    whisper(tmp_path, compression_ratio_threshold=1.0, logprob_threshold=-9.0)
    expected = Reference(tmp_path).long(tone(7.3, 2), task="transcribe")
    with running(create_whisper(str(tmp_path))) as scheduler:
        _, result = heard(scheduler, hear(tone(7.3, 2), timestamps="segment"))
        _, short = heard(scheduler, hear(tone(1.5, 2)))
    first, *others = Reference(tmp_path).short(tone(1.5, 2), task="transcribe")
    assert short.usage["completion_tokens"] > len(first)
    assert short.text in map(Reference(tmp_path).text, others)
    assert [each.token_ids for each in result.segments] == [each["tokens"].tolist() for each in expected]
    assert {each.temperature for each in result.segments} > {0.0}


def test_what_a_limit_cuts_is_said(tmp_path: Path) -> None:
    long, short = tmp_path / "long", tmp_path / "short"
    whisper(long, tokens=79, max_length=20, logprob_threshold=-9.0, compression_ratio_threshold=9.0)
    whisper(short, tokens=79, max_length=2)  # a time and a letter
    with running(create_whisper(str(long))) as scheduler:
        _, result = heard(scheduler, hear(tone(1.0)))
        assert result.finish_reason == "length"
        assert result.notices == ["the text was cut by the model's limit on tokens"]
    with running(create_whisper(str(short))) as scheduler:
        _, result = heard(scheduler, hear(tone(3.0), timestamps="segment"))
        assert result.finish_reason == "length"
        assert result.notices == [
            f"the text from {each} s was cut by the model's limit on tokens" for each in ("0.0 to 2.0", "2.0 to 3.0")
        ]


def test_nothing_is_written_where_nobody_speaks(tmp_path: Path) -> None:
    whisper(tmp_path, no_speech_threshold=-1.0, logprob_threshold=0.0)  # as if every window were silent
    with running(create_whisper(str(tmp_path))) as scheduler:
        _, result = heard(scheduler, hear(tone(5.0), timestamps="segment"))
    assert (result.text, result.segments, result.finish_reason) == ("", [], "stop")
    assert not Reference(tmp_path).long(tone(5.0))


def test_an_english_only_checkpoint_is_told_neither_language_nor_task(tmp_path: Path) -> None:
    whisper(tmp_path, multilingual=False)
    [group] = interface(str(tmp_path)).groups
    assert [each.name for each in group.parameters] == ["prompt", "temperature", "logprobs", "timestamps", "seed"]
    reference = Reference(tmp_path)
    with running(create_whisper(str(tmp_path))) as scheduler:
        _, result = heard(scheduler, hear(tone(1.5)))
        assert result.text in map(reference.text, reference.short(tone(1.5)))
        assert result.language == "en"
        _, result = heard(scheduler, hear(tone(4.0), timestamps="segment"))
        expected = reference.long(tone(4.0))
        assert [each.token_ids for each in result.segments] == [each["tokens"].tolist() for each in expected]


def test_a_checkpoint_without_times_takes_one_window(tmp_path: Path) -> None:
    whisper(tmp_path, no_timestamps_token_id=None, alignment_heads=None)
    [group] = interface(str(tmp_path)).groups
    assert "timestamps" not in [each.name for each in group.parameters]
    with running(create_whisper(str(tmp_path))) as scheduler:
        assert replies(scheduler, [hear(tone(1.0))])[0][1].text
        with pytest.raises(InvalidRequestError, match=r"the recording has 2\.5 s; this checkpoint takes at most 2 s"):
            replies(scheduler, [hear(tone(2.5))])


def test_the_interface_is_what_the_checkpoint_says(folder: Path, tmp_path: Path) -> None:
    [group] = interface(str(folder)).groups
    choices = {each.name: each.choices for each in group.parameters}
    assert sorted(choices["language"]) == ["de", "en", "ja"]
    assert choices["timestamps"] == ["none", "segment", "word"]
    whisper(tmp_path, alignment_heads=None)
    [group] = interface(str(tmp_path)).groups
    assert {each.name: each.choices for each in group.parameters}["timestamps"] == ["none", "segment"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": "<|en|>"}, r"params\.listen\.prompt: Encountered text in the prompt"),
        ({"content": [{"type": "text", "text": "x"}]}, "one audio part and nothing else"),
        ({"content": "x"}, "one audio part and nothing else"),
        ({"content": [{"type": "audio", "data": b"x"}]}, r"messages\[0\]\.content\[0\] \(audio\): not an audio file"),
    ],
)
def test_wrong_requests_fail_alone(scheduler: Scheduler, change: dict[str, Any], words: str) -> None:
    request = hear(tone(1.0), **{name: value for name, value in change.items() if name == "prompt"})
    if "content" in change:
        request.inputs["messages"][0]["content"] = change["content"]
    with pytest.raises(InvalidRequestError, match=words):
        replies(scheduler, [request])
    assert replies(scheduler, [hear(tone(1.0))])[0][1].text


def test_a_long_recording_is_over_the_option_s_limit(folder: Path) -> None:
    over = pytest.raises(InvalidRequestError, match=r"over the limit of 2 s \(max_audio_seconds\)")
    with running(create_whisper(str(folder), max_audio_seconds=2.0)) as scheduler, over:
        replies(scheduler, [hear(tone(3.0))])
