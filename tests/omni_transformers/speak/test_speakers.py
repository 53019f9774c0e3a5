"""Every model that speaks: its sound is that of its own call, streamed as whole, alone as beside others."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from attrs import evolve
from safetensors.torch import save_file
from tiny_transformers import checkpoint, speakers, speakers_by_frame
from tiny_transformers.driving import replies, running, say, send
from tiny_transformers.heard import HEARD
from transformers import BarkModel, BarkProcessor, PocketTTSProcessor

from omni_core.api import ConfigError, InvalidRequestError, OmniRequest, RequestTooLargeError, Scheduler
from omni_transformers.checkpoints import fetch, read
from omni_transformers.speak.declaration import SPEAKERS, interface, stages
from omni_transformers.speak.stage import create_speaker

assert speakers and speakers_by_frame  # noqa: PT018
FEW = ("VitsModel", "SpeechT5ForTextToSpeech", "CsmForConditionalGeneration", "PocketTTSForConditionalGeneration")
ALL = [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in SPEAKERS]
TEXTS = ["Hello there.", "What is a stage?", "Yes, it is.", "Nobody knows that."]
SENTENCES = [
    "Hello there.",
    "This is the second sentence, and it is a longer one.",
    "And another, for whoever listens to the very end.",
]
BY_FRAME = ("Csm", "Dia", "Higgs", "PocketTTS", "Gradium", "VibeVoice")
"""Speak a text as one piece, and stream it frame by frame."""
SHARED = [name for name, each in SPEAKERS.items() if each.shares]
"""Of several requests, their decoder computes one batch."""


def opened(architecture: str) -> Scheduler:
    folder = checkpoint(architecture)
    source = read(str(folder))
    [stage] = stages(source, source.given)
    return create_speaker(str(folder), **stage.factory_args)


def sound(streamed: list[Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([each.samples for each in streamed])


@pytest.mark.parametrize("architecture", ALL)
def test_the_sound_is_that_of_the_models_own_call(architecture: str) -> None:
    folder: Path = checkpoint(architecture)
    with running(opened(architecture)) as scheduler:
        [(streamed, result)] = replies(scheduler, [say(TEXTS[0], speech={"seed": 3})])
    [wanted] = HEARD[architecture](folder, TEXTS[:1], 3)
    assert np.abs(wanted).max() > 1e-3
    assert result.samples.shape == wanted.shape
    np.testing.assert_allclose(result.samples, wanted.clip(-1, 1), atol=1e-4)
    np.testing.assert_array_equal(sound(streamed), result.samples)
    assert len(streamed) > 1 or not architecture.startswith(BY_FRAME)
    assert {result.sample_rate, *(each.sample_rate for each in streamed)} == {interface(read(str(folder))).sample_rate}


def test_a_sentence_without_an_end_is_cut_where_a_model_takes_no_more() -> None:
    """SpeechT5 has a table of positions: 450 here."""
    with running(opened("SpeechT5ForTextToSpeech")) as scheduler:
        [(streamed, result)] = replies(scheduler, [say("word " * 160, speech={"seed": 3})])
    assert len(streamed) == 2
    np.testing.assert_array_equal(sound(streamed), result.samples)


@pytest.mark.parametrize("architecture", ALL)
def test_four_at_once_equal_those_alone(architecture: str) -> None:
    asked = [say(text, speech={"seed": number}) for number, text in enumerate(TEXTS)]
    with running(opened(architecture)) as scheduler:
        alone = [replies(scheduler, [each])[0][1].samples for each in asked]
        calls: Any = getattr(scheduler, "_calls", None)
        for each in [calls, *calls._stacked] if architecture in SHARED else ():
            each.steps = each.rows = 0
        together = [result.samples for _, result in replies(scheduler, asked)]
    for one, other in zip(alone, together, strict=True):  # those that share a batch are rounded in another order
        np.testing.assert_allclose(one, other, atol=1e-4 if architecture.startswith(BY_FRAME) else 0)
    assert len({each.tobytes() for each in alone}) > 1
    if architecture in SHARED:
        assert calls.rows > 2 * calls.steps, "the decoder computed one after the other"
        assert all(each.rows > 2 * each.steps for each in calls._stacked)


@pytest.mark.parametrize(
    "architecture", [each for each in ALL if not str(each.values[0]).startswith((*BY_FRAME, "Musicgen"))]
)
def test_a_long_text_is_spoken_sentence_by_sentence(architecture: str) -> None:
    with running(opened(architecture)) as scheduler:
        [(streamed, result)] = replies(scheduler, [say(" ".join(SENTENCES), speech={"seed": 5})])
    wanted = HEARD[architecture](checkpoint(architecture), SENTENCES, 5)
    np.testing.assert_allclose(result.samples, np.concatenate(wanted).clip(-1, 1), atol=1e-4)
    ends = np.cumsum([len(each.samples) for each in streamed])
    assert set(np.cumsum([len(each) for each in wanted])) <= {*ends}


def test_sentences_of_four_requests_in_one_batch_sound_as_alone() -> None:
    folder = str(checkpoint("VitsModel"))
    texts = [
        "Hello there. And a second one, which is of use.",
        "Yes.",
        "...!?",
        "What is a stage, and what is a pipeline of stages?",
    ]
    asked = [evolve(say(text, speech={"seed": number, "speed": 1 + number / 4}), metadata={"speaker": str(number % 3)})
             for number, text in enumerate(texts)]  # fmt: skip
    scheduler = create_speaker(folder, SPEAKERS["VitsModel"].speaker, max_batch_size=4)
    with running(scheduler):
        together = replies(scheduler, asked)
    figures = scheduler.statistics()  # type: ignore[attr-defined]
    assert figures["stepped"] > figures["steps"]
    with running(create_speaker(folder, SPEAKERS["VitsModel"].speaker, max_batch_size=1)) as scheduler:
        alone = [replies(scheduler, [each])[0] for each in asked]
    for (streamed, one), (_, other) in zip(alone, together, strict=True):
        np.testing.assert_allclose(other.samples, one.samples, atol=1e-5)
        np.testing.assert_array_equal(np.concatenate([np.zeros(0), *(each.samples for each in streamed)]), one.samples)
    assert [len(streamed) for streamed, _ in together] == [2, 1, 0, 1]


LIKE = [each for each in ALL if str(each.values[0]).startswith(("Csm", "Dia", "Higgs", "PocketTTS", "VibeVoice"))]


@pytest.mark.parametrize("architecture", LIKE)
def test_it_speaks_with_the_voice_of_a_recording(architecture: str) -> None:
    folder = checkpoint(architecture)
    offered = interface(read(str(folder)))
    assert offered.sample_rate is not None
    recording = np.random.default_rng(0).normal(size=4800).astype(np.float32).clip(-1, 1) * 0.3
    part = {"samples": recording, "sample_rate": offered.sample_rate, "text": "Said."}
    asked = say(TEXTS[0], speech={"seed": 3})
    asked.inputs["references"] = [part]
    with running(opened(architecture)) as scheduler:
        [(_, plain)] = replies(scheduler, [say(TEXTS[0], speech={"seed": 3})])
        [(_, like)] = replies(scheduler, [asked])
    [wanted] = HEARD[architecture](folder, TEXTS[:1], 3, recording, "Said.")
    assert "reference" in offered.inputs
    np.testing.assert_allclose(like.samples, wanted.clip(-1, 1), atol=1e-4)
    assert plain.samples.tobytes() != like.samples.tobytes()


def test_a_voice_and_a_speed_are_the_models_own() -> None:
    with running(opened("VitsModel")) as scheduler:
        [(_, plain), (_, other), (_, fast), (_, slow)] = replies(
            scheduler,
            [
                say(TEXTS[1], speech={"seed": 1}),
                evolve(say(TEXTS[1], speech={"seed": 1}), metadata={"speaker": "2"}),
                say(TEXTS[1], speech={"seed": 1, "speed": 2.0}),
                say(TEXTS[1], speech={"seed": 1, "speed": 0.5}),
            ],
        )
    assert plain.samples.tobytes() != other.samples.tobytes()
    assert len(fast.samples) < 0.75 * len(plain.samples) < 0.5 * len(slow.samples)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (OmniRequest({"messages": "Hi"}), "non-empty list"),
        (OmniRequest({}), "non-empty list"),
        (say("  "), "nothing to speak"),
        (say("日本"), "no character that this model can speak"),
        (
            OmniRequest({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            r"content\[0\]: this model speaks text",
        ),
        (
            evolve(say("Hi"), inputs={**say("Hi").inputs, "references": [{"path": "x.wav"}]}),
            "not readable|No such|no such|cannot",
        ),
        (evolve(say("Hi"), metadata={"speaker": "9"}), "no voice is called '9'"),
    ],
)
def test_a_request_that_cannot_be_spoken_fails_alone(request_: OmniRequest, words: str) -> None:
    with running(opened("VitsModel")) as scheduler:
        with pytest.raises(InvalidRequestError, match=words):
            replies(scheduler, [request_])
        [(_, result)] = replies(scheduler, [say("Hello")])
    assert len(result.samples)


def test_an_abort_ends_the_call_and_others_go_on() -> None:
    before = threading.active_count()
    with running(opened("CsmForConditionalGeneration")) as scheduler:
        send(scheduler, "long", say("Hello", speech={"max_new_tokens": 400}))
        assert scheduler.outbox.get(60) is not None
        scheduler.abort("long")
        [(_, result)] = replies(scheduler, [say("Hello", speech={"max_new_tokens": 3, "seed": 1})])
    assert result.notices == ["the speech was cut at max_new_tokens"]
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("missing", "words"),
    [("voices", "needs the vector of a voice.*--option voices"), ("vocoder", "microsoft/speecht5_hifigan")],
)
def test_what_a_checkpoint_lacks_is_named(
    missing: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "speecht5"
    shutil.copytree(checkpoint("SpeechT5ForTextToSpeech"), folder)
    shutil.rmtree(folder / missing)
    with pytest.raises(ConfigError, match=words):
        create_speaker(str(folder), SPEAKERS["SpeechT5ForTextToSpeech"].speaker)


def test_a_vocoder_must_be_one(tmp_path: Path) -> None:
    folder, other = checkpoint("SpeechT5ForTextToSpeech"), checkpoint("VitsModel")
    with pytest.raises(ConfigError, match=r"VitsModel.*a SpeechT5HifiGan is needed"):
        create_speaker(str(folder), SPEAKERS["SpeechT5ForTextToSpeech"].speaker, vocoder=str(other))


@pytest.mark.full
def test_a_codec_that_a_checkpoint_names_is_never_fetched(tmp_path: Path) -> None:
    folder = tmp_path / "dia"
    shutil.copytree(checkpoint("DiaForConditionalGeneration"), folder)
    settings = json.loads((folder / "processor_config.json").read_text())
    assert "audio_tokenizer" in settings
    settings["audio_tokenizer"]["audio_tokenizer_name_or_path"] = "somebody/else"
    (folder / "processor_config.json").write_text(json.dumps(settings))
    create_speaker(str(folder), SPEAKERS["DiaForConditionalGeneration"].speaker)


def test_a_preset_outside_of_the_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "bark" / "speaker_embeddings").mkdir(parents=True)
    inside, outside = "speaker_embeddings/a.npy", "../b.npy"
    for file in (inside, outside):
        np.save(tmp_path / "bark" / file, np.zeros(3))
    prompts = ("semantic_prompt", "coarse_prompt", "fine_prompt")
    listed = {
        name: dict.fromkeys(prompts, file)
        for name, file in (("inside", inside), ("outside", outside), ("gone", "c.npy"))
    }
    (tmp_path / "bark" / "speaker_embeddings_path.json").write_text(json.dumps({"repo_or_path": "x", **listed}))
    (tmp_path / "bark" / "config.json").write_text(json.dumps({"architectures": ["BarkModel"]}))
    assert interface(read(str(tmp_path / "bark"))).voices == ["inside"]


def test_a_model_without_speech_here_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Pop2PianoForConditionalGeneration"]}))
    with pytest.raises(ConfigError, match="no speech of Pop2PianoForConditionalGeneration yet"):
        interface(read(str(tmp_path)))


def test_voices_of_a_checkpoint_that_is_not_here_yet_are_any(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BarkModel"]}))
    offered = interface(read(str(tmp_path)))
    assert offered.voices == []
    assert offered.voices_from is not None
    assert offered.check_metadata({"speaker": "v2/en_speaker_6"}) == {"speaker": "v2/en_speaker_6"}


@pytest.mark.full
def test_a_preset_of_bark_is_its_own() -> None:
    folder = checkpoint("BarkModel")
    asked = evolve(say(TEXTS[0], speech={"seed": 3}), metadata={"speaker": "EN_1"})
    with running(opened("BarkModel")) as scheduler:
        [(_, result)] = replies(scheduler, [asked])
    model, processor = BarkModel.from_pretrained(folder).eval(), BarkProcessor.from_pretrained(folder)
    torch.manual_seed(3)
    with torch.inference_mode():
        wanted = model.generate(**processor(TEXTS[0], voice_preset="en_1"))[0].numpy()
    np.testing.assert_allclose(result.samples, wanted.clip(-1, 1), atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "width"),
    [
        ("PocketTTSForConditionalGeneration", 4),
        pytest.param("GradiumPhononTTSForConditionalGeneration", 6, marks=pytest.mark.full),
    ],
)
def test_a_voice_is_a_file_of_latents(architecture: str, width: int, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(architecture), folder)
    (folder / "voices").mkdir()
    latents = torch.randn(3, width)
    save_file({"audio_prompt_latents": latents}, folder / "voices" / "anna.safetensors")
    save_file({"k": latents, "v": latents + 1}, folder / "voices" / "other.safetensors")
    offered = interface(read(str(folder)))
    assert offered.voices == ["anna", "other"]
    asked = say(TEXTS[0], speech={"seed": 3})
    with running(create_speaker(str(folder), SPEAKERS[architecture].speaker)) as scheduler:
        [(_, result)] = replies(scheduler, [evolve(asked, metadata={"speaker": "anna"})])
        with pytest.raises(InvalidRequestError, match=r"other.safetensors holds no latents"):
            replies(scheduler, [evolve(asked, metadata={"speaker": "other"})])
    model = getattr(transformers, architecture).from_pretrained(folder).eval()
    processor = PocketTTSProcessor.from_pretrained(folder)
    talk = [{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": TEXTS[0]}]}]
    prompt = processor.apply_chat_template(talk, tokenize=False)
    inputs = processor(text=prompt, audio_prompt_latents=[latents], return_tensors="pt")
    torch.manual_seed(3)
    with torch.inference_mode():
        wanted = processor.decode(model.generate(**inputs)[0]).numpy()
    np.testing.assert_allclose(result.samples, wanted.clip(-1, 1), atol=1e-4)


def test_without_a_length_the_speech_goes_on_to_the_end_of_the_context(tmp_path: Path) -> None:
    folder = tmp_path / "csm"
    shutil.copytree(checkpoint("CsmForConditionalGeneration"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 40
    (folder / "config.json").write_text(json.dumps(config))
    settings = json.loads((folder / "generation_config.json").read_text())
    del settings["max_new_tokens"]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    prompt = len("[0]Hello") + 1
    with running(create_speaker(str(folder), SPEAKERS["CsmForConditionalGeneration"].speaker)) as scheduler:
        [(streamed, result)] = replies(scheduler, [say("Hello")])
        with pytest.raises(RequestTooLargeError, match="of the model's 40 positions"):
            replies(scheduler, [say("Hello" * 8)])
    assert len(streamed) == 40 - prompt
    assert result.notices == ["the speech was cut at max_new_tokens"]


def test_the_vocoder_of_a_hub_id_is_fetched_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(model: str, **given: Any) -> str:
        asked.append(model)
        return str(tmp_path)

    monkeypatch.setattr("omni_transformers.checkpoints.download", download)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["SpeechT5ForTextToSpeech"]}))
    assert fetch("org/name") == fetch(str(tmp_path)) == str(tmp_path)
    assert asked == ["org/name", "microsoft/speecht5_hifigan", str(tmp_path)]
