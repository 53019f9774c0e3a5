"""Log probabilities of what recognisers write: those of a forward that is given the whole text at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_transformers import checkpoint, examples, listeners, recognisers
from tiny_transformers.driving import replies, running
from tiny_transformers.tiny_whisper import hear, tone
from tiny_transformers.written import loaded

from omni_core.api import OmniRequest, Transcript
from omni_testing.outputs import check_transcript
from omni_transformers.logprobs import told
from omni_transformers.pipeline import transformers as pipeline

assert recognisers
assert listeners
WHISPER, MOONSHINE, QWEN = (
    "WhisperForConditionalGeneration",
    "MoonshineForConditionalGeneration",
    "Qwen3ASRForConditionalGeneration",
)


def heard(folder: Path, requests: Sequence[OmniRequest], **options: Any) -> list[Transcript]:
    [stage] = pipeline(str(folder), **options).stages
    assert stage.factory is not None
    module, factory = stage.factory.split(":")
    with running(getattr(import_module(module), factory)(str(folder), **stage.factory_args)) as scheduler:
        found = replies(scheduler, requests)
    for (chunks, result), request in zip(found, requests, strict=True):
        check_transcript(chunks, result, next(iter(request.params.values())).get("timestamps", "none"))
        assert [one for each in chunks for one in each.logprobs] == result.logprobs
    return [result for _, result in found]


def forced(model: Any, inputs: Any, prompt: int, ids: Sequence[int], **text: Any) -> list[float]:
    """Return the log probabilities of the tokens behind the first ``prompt``."""
    with torch.inference_mode():
        levels = model(**{**inputs, **text}).logits.float().log_softmax(-1)[0]
    return [float(levels[at - 1, ids[at]]) for at in range(prompt, len(ids))]


@pytest.mark.parametrize(
    ("name", "beams", "backend"),
    [
        (WHISPER, 1, "engine"),
        (MOONSHINE, 3, "auto"),
        pytest.param(MOONSHINE, 1, "engine", marks=pytest.mark.full),
        pytest.param(MOONSHINE, 1, "generate", marks=pytest.mark.full),
    ],
)
def test_they_are_those_of_a_forced_forward(name: str, beams: int, backend: str, tmp_path: Path) -> None:
    folder = checkpoint(name)
    if beams > 1:
        folder = Path(shutil.copytree(folder, tmp_path / "beams"))
        told_of_it = json.loads((folder / "generation_config.json").read_text())
        (folder / "generation_config.json").write_text(json.dumps({**told_of_it, "num_beams": beams}))
    sounds = [tone(1.0, number) for number in range(3)]
    # at temperature 0 a Whisper writes again what it is not sure of
    given = {"temperature": 1e-6} if name == WHISPER else {"timestamps": "segment"}
    results = heard(folder, [hear(each, logprobs=True, **given) for each in sounds], backend=backend)
    model, processor = loaded(name, folder)
    for samples, result in zip(sounds, results, strict=True):
        inputs = processor(samples, sampling_rate=16_000, return_tensors="pt")
        if name == WHISPER:
            asked = {"task": "transcribe", "language": result.language, "force_unique_generate_call": True}
            with torch.inference_mode():
                [ids] = model.generate(**inputs, return_timestamps=False, **asked).tolist()
            begin, text = ids[:4], [each for each in ids[4:] if each != model.config.eos_token_id]
        else:
            begin, text = [model.config.decoder_start_token_id], result.segments[0].token_ids
        whole = [*begin, *text]
        levels = forced(model, inputs, len(begin), whole, decoder_input_ids=torch.tensor([whole]))
        expected = told(processor.tokenizer, text, levels)
        assert [each.token_id for each in result.logprobs] == [each.token_id for each in expected]
        assert [each.logprob for each in result.logprobs] == pytest.approx(
            [each.logprob for each in expected], abs=1e-3
        )
        assert len(expected) > 3


def test_a_model_that_reads_the_recording_as_a_prompt_tells_them(tmp_path: Path) -> None:
    folder, part = checkpoint(QWEN), examples.part("audio")
    request = OmniRequest(
        {"messages": [{"role": "user", "content": [part]}]}, {"answer": {"logprobs": True, "max_new_tokens": 12}}
    )
    [first, second] = heard(folder, [request, request])
    assert first.logprobs == second.logprobs != []
    model, processor = loaded(QWEN, folder)
    inputs = processor.apply_transcription_request(np.asarray(part["samples"]), return_tensors="pt")
    prompt = inputs["input_ids"].shape[1]
    with torch.inference_mode():
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0].tolist()
    mask = torch.ones(1, len(ids), dtype=torch.long)
    levels = forced(model, inputs, prompt, ids, input_ids=torch.tensor([ids]), attention_mask=mask)
    expected = told(processor.tokenizer, ids[prompt:], levels)
    assert [each.token_id for each in first.logprobs] == [each.token_id for each in expected]
    assert [each.logprob for each in first.logprobs] == pytest.approx([each.logprob for each in expected], abs=1e-3)


def test_the_windows_of_a_long_recording_tell_theirs() -> None:
    [result, plain] = heard(checkpoint(WHISPER), [hear(tone(5.0, 2), logprobs=True), hear(tone(5.0, 2))])
    assert result.logprobs
    assert (plain.text, plain.logprobs) == (result.text, [])


def test_bytes_of_a_character_may_be_those_of_several_tokens() -> None:
    _, processor = loaded(WHISPER, checkpoint(WHISPER))
    tokenizer = processor.tokenizer
    ids = tokenizer.encode("héé 你", add_special_tokens=False)
    found = told(tokenizer, [*ids, tokenizer.eos_token_id], [-1.0] * (len(ids) + 1))
    assert b"".join(each.data for each in found) == "héé 你".encode()
    assert found[1].text == "\ufffd"
