"""Requests with media, and what transformers' own ``generate()`` answers to them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from attrs import evolve
from PIL import Image

from omni_core.api import OmniRequest, StagePayload
from omni_transformers.architectures import table
from omni_transformers.loading import load_processor
from omni_transformers.words.adapters import EXTRA, NEEDS, PROMPTS, unmarked
from omni_transformers.words.engine import create_answer
from omni_transformers.words.messages import rate_of
from omni_transformers.words.prepare import create_prepare
from omni_transformers.words.transcripts import create_recogniser
from tiny_transformers import checkpoint
from tiny_transformers.driving import replies, running

TOKENS = 12

TEXTS = {
    "VisionEncoderDecoderModel": "<s_read>",
    "Pix2StructForConditionalGeneration": "",
    "GotOcr2ForConditionalGeneration": "OCR",
}
"""The text beside all media, where not any may be one."""


@cache
def media(kind: str, number: int = 0) -> Any:
    """Return a sound at 16 kHz, a picture ``[H, W, 3]`` or frames ``[T, H, W, 3]``; equal numbers give equal ones."""
    random = np.random.default_rng(number)
    if kind == "audio":
        return random.normal(0, 0.1, 8000 + 1600 * number).astype(np.float32)
    shape = (40 + 8 * number, 48, 3) if kind == "image" else (4 + 2 * number, 40, 48, 3)
    return random.integers(0, 255, shape, dtype=np.uint8)


def part(kind: str, number: int = 0, rate: int = 16_000) -> dict[str, Any]:
    """Return a part of a message."""
    value = media(kind, number)
    named = {"audio": {"samples": value, "sample_rate": rate}, "image": {"image": value}, "video": {"frames": value}}
    return {"type": kind, **named[kind]}


def conversations(kinds: list[str], rate: int, text_of_all: str | None = None) -> list[list[dict[str, Any]]]:
    """Return the contents of some messages: media of each kind with a text, and a text alone where text is one of them."""
    if kinds == ["text"]:
        return [[{"type": "text", "text": text}] for text in ("Hello", "What is a stage?", "ä 日本", "x")]
    found = [
        [part(kind, number, rate), {"type": "text", "text": text if text_of_all is None else text_of_all}]
        for number, (kind, text) in enumerate(zip((kinds * 4)[:4], ("What?", "ä 日本", "Say it", "x"), strict=True))
        if kind != "text"
    ]
    return found + ([[{"type": "text", "text": "Hello"}]] if "text" in kinds else [])


def asked(content: list[dict[str, Any]]) -> OmniRequest:
    """Return a request of one message."""
    return OmniRequest({"messages": [{"role": "user", "content": content}]}, {"answer": {"max_new_tokens": TOKENS}})


def as_transformers_reads(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts as chat templates read them."""
    read = {
        "audio": lambda each: each["samples"],
        "image": lambda each: Image.fromarray(each["image"]),
        "video": lambda each: each["frames"],
    }
    return [
        each if each["type"] == "text" else {"type": each["type"], each["type"]: read[each["type"]](each)}
        for each in content
    ]


def times(parts: list[dict[str, Any]], processor: Any) -> dict[str, Any]:
    """Return the settings by which a processor takes frames as they are."""
    counts = [len(each["video"]) for each in parts if each["type"] == "video"]
    if not counts:
        return {}
    own = processor.video_processor
    fps = getattr(own, "fps", None) or (30.0 if getattr(own, "num_frames", None) else 2.0)
    metadata = [
        {"total_num_frames": count, "fps": fps, "duration": count / fps, "frames_indices": list(range(count))}
        for count in counts
    ]
    return {"do_sample_frames": False, "video_metadata": metadata}


def reference(name: str, content: list[dict[str, Any]], folder: Path | None = None) -> list[int]:
    """Return the ids of transformers' own greedy ``generate()`` on the processor's own output."""
    folder = folder or checkpoint(name)
    model = getattr(transformers, name).from_pretrained(folder).eval()
    return generated(name, model, load_processor(str(folder)), content)


def generated(name: str, model: Any, processor: Any, content: list[dict[str, Any]]) -> list[int]:
    """Return the ids of transformers' own greedy ``generate()``."""
    parts = as_transformers_reads(content)
    if getattr(processor, "chat_template", None) and name not in PROMPTS:
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": parts}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            **(
                {"processor_kwargs": {"videos_kwargs": times(parts, processor)}}
                if hasattr(processor, "tokenizer")
                else {}
            ),
        )
    else:
        text = "".join(each.get("text") or str(getattr(processor, f"{each['type']}_token", "")) for each in parts)
        if getattr(getattr(processor, "tokenizer", None), "chat_template", None):
            text = processor.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
            )
        named = {"image": "images", "audio": "audio", "video": "videos"}
        if name == "GotOcr2ForConditionalGeneration":
            text = None
        if PROMPTS.get(name) is unmarked:
            text = "".join(each.get("text", "") for each in parts)
        if name == "VoxtralForConditionalGeneration":
            return _generated(model, _voxtral(processor, parts))
        if name == "VisionEncoderDecoderModel":
            inputs = dict(processor(images=[parts[0]["image"]], return_tensors="pt"))
            return _generated(
                model,
                inputs
                | {
                    "decoder_input_ids": processor.tokenizer(
                        text, add_special_tokens=False, return_tensors="pt"
                    ).input_ids
                },
            )
        given = {named[each["type"]]: [each[each["type"]]] for each in parts if each["type"] != "text"}
        inputs = processor(text=text or None, return_tensors="pt", **given)
    return _generated(model, inputs | EXTRA.get(name, {}))


def _voxtral(processor: Any, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the inputs that mistral-common makes, written down: 2 seconds of sound, in a window, of 200 frames, are 25 tokens."""
    tokens = processor.tokenizer.convert_tokens_to_ids(["[INST]", "[/INST]", "[BEGIN_AUDIO]"])
    assert tokens == [259, 260, 261]
    ids, features = [257, tokens[0]], {}
    for each in parts:
        if each["type"] == "text":
            ids += processor.tokenizer.encode(each["text"], add_special_tokens=False)
            continue
        ids += [tokens[2], *[24] * 25]
        sound = np.pad(each["audio"], (0, 32_000 - len(each["audio"])))
        features = {
            "input_features": processor.feature_extractor(
                sound, sampling_rate=16_000, return_tensors="pt"
            ).input_features
        }
    return {"input_ids": torch.tensor([[*ids, tokens[1]]]), **features}


def _generated(model: Any, inputs: Any) -> list[int]:
    inputs = {
        name: each.to(model.dtype) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for name, each in inputs.items()
    }
    with torch.inference_mode():
        ids = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=TOKENS)
    if model.config.is_encoder_decoder:
        prompt = 1 + (inputs["decoder_input_ids"].shape[1] if "decoder_input_ids" in inputs else 0)
    else:
        prompt = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
    found: list[int] = ids[0, prompt:].tolist()
    return found


def reference_transcript_ids(name: str, samples: Any, tokens: int = TOKENS) -> list[int]:
    """Return the ids of transformers' own greedy ``generate()`` on the processor's own request."""
    folder = checkpoint(name)
    model = getattr(transformers, name).from_pretrained(folder).eval()
    return transcript_ids(name, model, load_processor(str(folder)), samples, tokens)


def transcript_ids(name: str, model: Any, processor: Any, samples: Any, tokens: int = TOKENS) -> list[int]:
    """Return the ids of transformers' own greedy ``generate()`` on the processor's own request."""
    if hasattr(processor, "apply_transcription_request"):
        inputs = processor.apply_transcription_request(samples, return_tensors="pt")
    else:
        inputs = processor(audio=samples, return_tensors="pt")
    prompt = inputs["input_ids"].shape[1] if "input_ids" in inputs else 1
    with torch.inference_mode():
        ids = model.generate(**inputs, **EXTRA.get(name, {}), do_sample=False, max_new_tokens=tokens)
    found: list[int] = ids[0, prompt:].tolist()
    return found


def check_transcripts(name: str) -> None:
    """Compare transcripts at once with those of :func:`reference_transcript_ids`, and streams with texts."""
    parts = [part("audio", number, rate_of(load_processor(str(checkpoint(name))))) for number in range(4)]
    with running(create_recogniser(str(checkpoint(name)))) as scheduler:
        found = replies(scheduler, [asked([each]) for each in parts])
    for each, (streamed, result) in zip(parts, found, strict=True):
        tokenizer = load_processor(str(checkpoint(name))).tokenizer
        ids = reference_transcript_ids(name, each["samples"])
        assert result.text == tokenizer.decode(ids, skip_special_tokens=True)
        assert "".join(chunk.text for chunk in streamed) == result.text
        assert result.finish_reason == "length"
    assert len({result.text for _, result in found}) > 1, "all transcripts are equal"


def check(name: str, backend: str = "steps") -> None:
    """Compare ids at once with those of :func:`reference`, and streams with texts."""
    folder = str(checkpoint(name))
    kinds = [each for each in table()[name].inputs if each != "text"] + ([] if name in NEEDS else ["text"])
    processor = load_processor(folder)
    contents = conversations(kinds, rate_of(processor), TEXTS.get(name))
    payloads = [StagePayload(str(number), asked(each)) for number, each in enumerate(contents)]
    prepare, answer = create_prepare(folder, backend=backend), create_answer(folder, backend=backend)
    with running(prepare):
        prompts = [result for _, result in replies(prepare, payloads)]
    with running(answer) as scheduler:
        found = replies(scheduler, [evolve(each, data=data) for each, data in zip(payloads, prompts, strict=True)])
    for content, (streamed, result) in zip(contents, found, strict=True):
        assert result.token_ids == reference(name, content), (result.token_ids, reference(name, content))
        assert "".join(each.text for each in streamed) == result.text
        tokenizer = getattr(processor, "tokenizer", processor)
        assert result.text == tokenizer.decode(result.token_ids, skip_special_tokens=True)
    assert len({tuple(result.token_ids) for _, result in found}) > 1, "all answers are equal"
