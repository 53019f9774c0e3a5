"""A diarizer beside a recogniser: who speaks when, and each turn written down by itself."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as T
from tiny_transformers import checkpoint, frame_recognisers, recognisers, speakers
from tiny_transformers.driving import replies, running
from tiny_transformers.tiny_whisper import hear, tone
from transformers.models.nemotron3_diarization.configuration_nemotron3_diarization import (
    Nemotron3DiarizationAudioConfig,
    Nemotron3DiarizationHeadConfig,
    Nemotron3DiarizationStreamingConfig,
)

from omni_core.api import ConfigError
from omni_testing.outputs import check_transcript
from omni_transformers.pipeline import transformers as pipeline
from omni_transformers.recognise.frames import Ctc
from omni_transformers.recognise.generated import create_generated
from omni_transformers.recognise.speakers import ARCHITECTURE, Diarizer, turns_of

assert frame_recognisers
assert recognisers
assert speakers
MOONSHINE = "MoonshineForConditionalGeneration"
RATE, HOP = 16_000, 160


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diarizer of three speakers, of random weights, with chunks of 0.8 s."""
    torch.manual_seed(3)
    sizes = {"num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32, "num_mel_bins": 16}
    config = T.Nemotron3DiarizationConfig(
        audio_config=Nemotron3DiarizationAudioConfig(hidden_size=16, **sizes),
        head_config=Nemotron3DiarizationHeadConfig(hidden_size=8, num_speakers=3, audio_hidden_size=16),
        streaming_config=Nemotron3DiarizationStreamingConfig(num_speakers=3, speaker_cache_length=12),
        chunk_length=10,
        chunk_right_context=3,
        chunk_left_context=2,
        fifo_length=4,
        speaker_cache_update_period=6,
        architectures=[ARCHITECTURE],
        initializer_range=0.5,
    )
    made = tmp_path_factory.mktemp("diarizer")
    getattr(T, ARCHITECTURE)(config).save_pretrained(made)
    T.Nemotron3DiarizationProcessor(T.NemotronAsrStreamingFeatureExtractor(feature_size=16)).save_pretrained(made)
    return made


def finished(values: Generator[Any, None, Any]) -> tuple[int, Any]:
    """Return how often a generator yields, and its result."""
    count = 0
    while True:
        try:
            next(values)
        except StopIteration as end:
            return count, end.value
        count += 1


@pytest.mark.parametrize("seconds", [0.3, 5.03])
def test_it_hears_chunk_by_chunk_what_the_model_hears_at_once(folder: Path, seconds: float) -> None:
    diarizer, samples = Diarizer(str(folder), "float32", "cpu"), tone(seconds)
    chunks, levels = finished(diarizer.levels(samples))
    model, processor = getattr(T, ARCHITECTURE).from_pretrained(folder), T.AutoProcessor.from_pretrained(folder)
    with torch.inference_mode():
        whole = model(**processor(samples, sampling_rate=RATE, return_tensors="pt")).logits[0].sigmoid().numpy()
    assert np.abs(levels - whole).max() < 1e-5
    assert levels.std() > 0.01
    assert chunks == -(-len(levels) // 80)


def levels_of(*runs: tuple[float, int]) -> np.ndarray:
    """Return levels of two speakers; of runs of some seconds, the speaker, or -1."""
    return np.concatenate(
        [np.tile(np.eye(2, dtype=np.float32)[each] * (each >= 0), (round(seconds * 100), 1)) for seconds, each in runs]
    )


def test_turns_cover_a_recording() -> None:
    levels = levels_of((0.5, -1), (2.0, 0), (0.2, 1), (1.0, 0), (0.5, -1), (3.0, 1), (45.0, 0), (1.0, -1))
    samples = np.zeros(round(53.2 * RATE), np.float32)
    turns = turns_of(levels, HOP, samples, RATE)
    assert [(each.span.begin / RATE, each.speaker) for each in turns][:3] == [(0.0, 0), (4.2, 1), (7.2, 0)]
    assert [each.span.begin for each in turns[1:]] == [each.span.end for each in turns[:-1]]
    assert (turns[-1].span.end, turns[-1].speaker, len(turns)) == (len(samples), 0, 4)  # 46 s are two parts
    assert [(each.span.begin, each.span.end) for each in turns_of(levels_of((1.0, -1)), HOP, samples[:RATE], RATE)] == [
        (0, RATE)
    ]


def test_each_turn_is_written_down_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def levels(self: Diarizer, samples: np.ndarray) -> Generator[None, None, np.ndarray]:
        yield
        return levels_of((1.0, 1), (1.5, 0))

    monkeypatch.setattr(Diarizer, "levels", levels)
    samples = tone(2.5)
    with running(create_generated(str(checkpoint(MOONSHINE)), diarizer=str(folder))) as scheduler:
        found = replies(
            scheduler,
            [
                hear(samples, diarize=True, timestamps="segment", logprobs=True),
                hear(samples),
                hear(samples[:RATE]),
                hear(samples[RATE:]),
            ],
        )
    (chunks, told), (_, plain), (_, first), (_, second) = found
    check_transcript(chunks, told, "segment")
    assert [(each.text, each.start, each.end, each.speaker) for each in told.segments] == [
        (first.text, 0.0, 1.0, "1"),
        (second.text, 1.0, 2.5, "0"),
    ]
    assert told.text == f"{first.text} {second.text}"
    assert told.speakers == ["1", "0"]
    assert len(chunks) == 2
    assert not plain.segments
    assert told.logprobs


def test_words_of_a_ctc_model_are_those_of_the_turn_that_they_are_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def levels(self: Diarizer, samples: np.ndarray) -> Generator[None, None, np.ndarray]:
        yield
        yield
        return levels_of((1.0, 1), (1.5, 0))

    monkeypatch.setattr(Diarizer, "levels", levels)
    samples = tone(2.5)
    with running(Ctc(str(checkpoint("Wav2Vec2ForCTC")), diarizer=str(folder))) as scheduler:
        asked = [
            hear(samples, diarize=True, timestamps="word"),
            hear(samples, timestamps="word"),
            hear(samples, diarize=True),
        ]
        [(chunks, told), (_, plain), (_, untimed)] = replies(scheduler, asked)
    check_transcript(chunks, told, "word")
    assert told.text == plain.text
    assert [(each.text, each.start) for each in told.words] == [(each.text, each.start) for each in plain.words]
    assert [each.speaker for each in told.words] == ["1" if each.start + each.end < 2.0 else "0" for each in told.words]
    assert {each.speaker for each in told.words} == {"0", "1"}
    assert [each.speaker for each in untimed.segments] == [each.speaker for each in told.segments]
    assert all(each.speaker is None for each in plain.words)


def test_it_is_declared_where_it_has_an_effect(folder: Path) -> None:
    made = pipeline(str(checkpoint(MOONSHINE)), diarizer=str(folder))
    assert made.interface is not None
    assert "diarize" in [each.name for each in made.interface.groups[0].parameters]
    with pytest.raises(ConfigError, match="has no effect on VitsModel"):
        pipeline(str(checkpoint("VitsModel")), diarizer=str(folder))
    with pytest.raises(ConfigError, match=f"a {ARCHITECTURE} is needed here"):
        Diarizer(str(checkpoint(MOONSHINE)), "auto", "cpu")
