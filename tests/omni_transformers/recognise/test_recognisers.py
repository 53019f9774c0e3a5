"""Every recogniser but Whisper: what transformers' own code writes, alone and beside others, short and long."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_transformers import MAKERS, checkpoint, recognisers
from tiny_transformers.driving import replies, running
from tiny_transformers.tiny_whisper import hear, tone
from tiny_transformers.written import LANGUAGE, reference
from transformers import AutoProcessor

from omni_core.api import ConfigError, InvalidRequestError, Scheduler, Transcript, Word
from omni_testing.outputs import check_transcript
from omni_transformers.architectures import table
from omni_transformers.checkpoints import read
from omni_transformers.pipeline import transformers as pipeline
from omni_transformers.recognise import generated
from omni_transformers.recognise.declaration import SAMPLED
from omni_transformers.recognise.frames import Ctc, Transducer
from omni_transformers.recognise.processors import GraniteProcessor

assert recognisers
SMALL = ("MoonshineForConditionalGeneration", "Wav2Vec2ForCTC", "ParakeetForTDT")
NAMES = [name for name in MAKERS if table()[name].kind == "recognise" and name != "WhisperForConditionalGeneration"]
ALL = [pytest.param(name, marks=[] if name in SMALL else [pytest.mark.full], id=name) for name in NAMES]


@pytest.fixture(scope="module", params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def scheduler(name: str) -> Iterator[Scheduler]:
    [stage] = pipeline(str(checkpoint(name))).stages
    assert stage.factory is not None
    module, factory = stage.factory.split(":")
    with running(getattr(import_module(module), factory)(str(checkpoint(name)), **stage.factory_args)) as scheduler:
        yield scheduler


def asked(name: str, samples: np.ndarray, **params: Any) -> Any:
    language = {"language": LANGUAGE[name]} if name in LANGUAGE else {}
    if name in SAMPLED:  # these know no times
        params.pop("timestamps", None)
    return hear(samples, **language, **params)


def heard(scheduler: Scheduler, request: Any) -> Transcript:
    """Return the transcript of a request; what it streams must be that."""
    [(chunks, result)] = replies(scheduler, [request])
    check_transcript(chunks, result, request.params["listen"].get("timestamps", "none"))
    assert isinstance(result, Transcript)
    return result


def test_what_is_written_is_what_transformers_writes(scheduler: Scheduler, name: str) -> None:
    for number in range(2):
        ids, text = reference(name, tone(1.5, number))
        result = heard(scheduler, asked(name, tone(1.5, number), timestamps="segment"))
        assert result.text == text.strip() != ""
        assert result.duration == 1.5
        if table()[name].form == "seq2seq":
            [segment] = result.segments
            assert segment.token_ids == ids[-len(segment.token_ids) :]
            assert len(ids) - len(segment.token_ids) < 12  # the prompt
            assert result.finish_reason == ("stop" if ids[-1] == 2 else "length")
        else:
            assert result.finish_reason == "stop"


def test_requests_at_once_are_written_as_alone(scheduler: Scheduler, name: str) -> None:
    lengths = [1.0, 1.5, 1.0, 0.05]
    requests = [asked(name, tone(each, number), timestamps="segment") for number, each in enumerate(lengths)]
    alone = [heard(scheduler, each) for each in requests]
    assert [result for _, result in replies(scheduler, requests)] == alone


def test_a_long_recording_is_written_in_windows(
    scheduler: Scheduler, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if table()[name].form == "live":
        pytest.skip("it is heard piece by piece, however long it is")
    monkeypatch.setattr(Ctc, "WINDOW", 2.0)
    monkeypatch.setattr(Ctc, "CONTEXT", 0.25)
    monkeypatch.setattr(Transducer, "WINDOW", 2.0)
    monkeypatch.setattr(generated, "WINDOW", 2.0)
    samples = np.concatenate([tone(1.0, 1), np.zeros(4000, np.float32), tone(1.0, 2), tone(1.0, 3)])
    result = heard(scheduler, asked(name, samples, timestamps="segment"))
    assert result.duration == 3.25
    assert 2.0 < result.segments[-1].end < 3.4
    assert all(a.start <= b.start <= b.end for a, b in zip(result.segments, result.segments[1:], strict=False))
    if table()[name].form != "ctc":  # divided in the silence: the texts of both sides, joined
        texts = [heard(scheduler, asked(name, each)).text for each in (samples[:16_800], samples[16_800:])]
        assert result.text == " ".join(filter(None, texts))


@pytest.mark.parametrize("name", ["Wav2Vec2ForCTC"], indirect=True)
def test_windows_of_ctc_are_joined_as_by_the_pipeline_of_transformers(
    scheduler: Scheduler, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ctc, "WINDOW", 2.0)
    monkeypatch.setattr(Ctc, "CONTEXT", 0.4)
    run = transformers.pipeline("automatic-speech-recognition", model=str(checkpoint(name)))
    samples = tone(7.0, 1)
    expected = run(samples.copy(), chunk_length_s=2.0, stride_length_s=0.4, return_timestamps="word")
    result = heard(scheduler, asked(name, samples, timestamps="word"))
    assert result.text == expected["text"].strip()
    assert [each.text for each in result.words] == [each["text"] for each in expected["chunks"]]
    assert len(result.words) > 5
    known = np.array([each["timestamp"] for each in expected["chunks"]], float)
    assert np.array([(each.start, each.end) for each in result.words]) == pytest.approx(known, abs=0.05)


@pytest.mark.parametrize("name", ["Wav2Vec2ForCTC"], indirect=True)
def test_a_token_on_both_sides_of_a_bound_is_one(
    scheduler: Scheduler, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ctc, "WINDOW", 2.0)
    monkeypatch.setattr(Ctc, "CONTEXT", 0.0)
    assert isinstance(scheduler, Ctc)
    with pytest.MonkeyPatch.context() as patch:  # every frame is an "a", in each window
        ids = torch.full((1, 100), scheduler.tokenizer.convert_tokens_to_ids("a"))
        patch.setattr(scheduler, "model", SimpleNamespace(generate=lambda **inputs: ids, dtype=torch.float32))
        result = heard(scheduler, asked(name, tone(6.0), timestamps="word"))
    assert (result.text, result.usage["completion_tokens"]) == ("a", 1)
    assert result.words == [Word("a", 0.0, 6.0)]


@pytest.mark.parametrize("name", ["ParakeetForTDT", "NemotronAsrStreamingForRNNT"], indirect=True)
def test_words_of_a_transducer_have_the_times_of_its_processor(scheduler: Scheduler, name: str) -> None:
    folder = checkpoint(name)
    model, processor = getattr(transformers, name).from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    inputs = processor(tone(1.5), sampling_rate=16_000)
    made = model.generate(**inputs, return_dict_in_generate=True)
    _, [times] = processor.decode(made.sequences, durations=made.durations, skip_special_tokens=True)
    result = heard(scheduler, asked(name, tone(1.5), timestamps="word"))
    assert "".join(each.text for each in result.words) == "".join(each["token"] for each in times).replace(" ", "")
    assert result.words[0].start == times[0]["start"]
    assert {each.end for each in result.words} <= {min(1.5, each["end"]) for each in times}


@pytest.mark.parametrize(
    "name", [pytest.param("CohereAsrForConditionalGeneration", marks=pytest.mark.full)], indirect=True
)
def test_a_model_that_does_not_hear_languages_asks_for_one(scheduler: Scheduler, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"params\.listen\.language: this model does not hear .*ar, de, el"):
        replies(scheduler, [hear(tone(1.0))])


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("SeamlessM4TForSpeechToText", ["de", "en", "fr"]),
        ("Nemotron3_5AsrForRNNT", ["de-DE", "en-US"]),
    ],
)
@pytest.mark.full
def test_languages_come_from_the_checkpoint(name: str, known: list[str]) -> None:
    interface = pipeline(str(checkpoint(name))).interface
    assert interface is not None
    assert sorted(next(each for each in interface.groups[0].parameters if each.name == "language").choices) == known


@pytest.mark.full
def test_features_of_granite_are_those_that_torchaudio_makes() -> None:
    processor = GraniteProcessor(read(str(checkpoint("GraniteSpeech5ForCTC"))))
    features = processor(audio=[tone(0.5, 1)], sampling_rate=16_000, return_tensors="pt")["input_features"]
    assert features.shape == (1, 25, 64)
    recorded = [0.98895, 1.21505, 0.00233, -0.0173, 1.10142, 1.22713, 0.02298, 0.00468]
    assert features[0, 7, ::9].tolist() == pytest.approx(recorded, abs=1e-4)


@pytest.mark.parametrize("named", [None, "Wav2Vec2ProcessorWithLM"])
def test_a_checkpoint_needs_a_tokenizer_and_features_but_no_processor(tmp_path: Path, named: str | None) -> None:
    folder = shutil.copytree(checkpoint("Data2VecAudioForCTC"), tmp_path / "x")
    features = json.loads((folder / "processor_config.json").read_text())["feature_extractor"]
    (folder / "processor_config.json").unlink()
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "processor_class": named}))
    with pytest.raises(ConfigError, match="has no feature extractor that can be read"):
        Ctc(str(folder))
    (folder / "preprocessor_config.json").write_text(json.dumps(features))
    with running(Ctc(str(folder))) as found, running(Ctc(str(checkpoint("Data2VecAudioForCTC")))) as whole:
        assert heard(found, hear(tone(1.0))) == heard(whole, hear(tone(1.0)))


def test_a_checkpoint_that_translates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Speech2TextForConditionalGeneration"]}')
    (tmp_path / "tokenizer_config.json").write_text('{"lang_codes": "mustc"}')
    with pytest.raises(ConfigError, match="it translates into one of several languages"):
        pipeline(str(tmp_path))
