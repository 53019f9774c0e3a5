"""Text by the engine: the ids of ``generate()``, whatever is computed together, and streams that equal their texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import checkpoint, writers
from tiny_transformers.driving import running
from transformers import AutoModelForCausalLM, AutoTokenizer

from omni_core.api import IncomingMessage, OmniRequest, StagePayload
from omni_transformers.words.engine import create_answer, create_prepare

TEXTS = [
    "Hello",
    "What is a stage, and what is a pipeline?",
    "",
    "ä 日本",
    "Hello, what is it?",
    "x" * 60,
    "1",
    "What is a stage?",
]
UNFIT = {"Llama4ForCausalLM", "Lfm2ForCausalLM", "MambaForCausalLM", "BloomForCausalLM", "GPTJForCausalLM"}
FIRST = {"LlamaForCausalLM", "Gemma2ForCausalLM", "GptOssForCausalLM", "OPTForCausalLM"}
FITTING = [
    pytest.param(name, marks=[] if name in FIRST else [pytest.mark.full])
    for name in writers.CONFIGS
    if name not in UNFIT
]


def reference(folder: Path, text: str, tokens: int) -> tuple[list[int], torch.Tensor]:
    """Return the ids of transformers' own greedy ``generate()``, and its logits ``[tokens, vocab]``."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    with torch.inference_mode():
        found = model.generate(
            **inputs, do_sample=False, max_new_tokens=tokens, output_logits=True, return_dict_in_generate=True
        )
    return found.sequences[0, inputs["input_ids"].shape[1] :].tolist(), torch.cat(found.logits)


def say(text: str, **params: Any) -> OmniRequest:
    return OmniRequest({"messages": [{"role": "user", "content": text}]}, {"answer": params})


def answered(folder: Path, requests: list[OmniRequest], **options: Any) -> list[tuple[str, Any]]:
    """Send requests at once through the stages; return the streamed text of each, and its result."""
    prepare = create_prepare(str(folder), backend="engine")
    streamed, results = [""] * len(requests), dict[str, Any]()
    with running(create_answer(str(folder), backend="engine", **options)) as scheduler:
        for number, request in enumerate(requests):
            payload = StagePayload(str(number), request)
            payload.data, payload.request = prepare(payload), request.without_inputs()
            scheduler.inbox.put(IncomingMessage(str(number), "new_request", payload))
        while len(results) < len(requests):
            message = scheduler.outbox.get(60)
            assert message is not None
            if message.type == "error":
                raise message.data
            if message.type == "stream":
                streamed[int(message.request_id)] += message.data.text
            else:
                results[message.request_id] = message.data
    return [(each, results[str(number)]) for number, each in enumerate(streamed)]


@pytest.mark.parametrize("architecture", FITTING)
def test_ids_at_once_equal_those_of_generate_and_streams_equal_texts(architecture: str) -> None:
    folder = checkpoint(architecture)
    found = answered(folder, [say(text, max_new_tokens=20) for text in TEXTS], chunk_size=16, max_batch_tokens=40)
    seen = set()
    for text, (streamed, result) in zip(TEXTS, found, strict=True):
        ids, logits = reference(folder, text, 20)
        for place, (ours, its) in enumerate(zip(result.token_ids, ids, strict=True)):
            if ours != its:
                assert abs(logits[place, ours] - logits[place, its]) < 1e-4, (text, place, result.token_ids, ids)
                break
        assert streamed == result.text
        assert result.usage["completion_tokens"] == len(result.token_ids)
        seen.update(ids)
    assert len(seen) > 8, "the answers are too much alike to show anything"
