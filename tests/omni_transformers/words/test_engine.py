"""Text by the engine: the ids of ``generate()``, whatever is computed together, and streams that equal their texts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import causal
from tiny_transformers.driving import replies, running
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from omni_core.api import IncomingMessage, InvalidRequestError, OmniRequest, Scheduler, StagePayload
from omni_core.stage.assembly import assemble
from omni_transformers.pipeline import transformers
from omni_transformers.words.engine import create_answer
from omni_transformers.words.prepare import create_prepare

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
    for name in causal.CONFIGS
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


def answered(
    folder: Path,
    requests: list[OmniRequest],
    counters: dict[str, float] | None = None,
    *,
    in_turn: bool = False,
    scheduler: Scheduler | None = None,
    **options: Any,
) -> list[tuple[str, Any]]:
    """Send requests at once, or each after the last one's end, through the stages.

    Returns:
        The streamed text of each, and its result. ``counters`` gets the engine's.
    """
    prepare, answer = (
        create_prepare(str(folder), backend="engine"),
        create_answer(str(folder), backend="engine", **options) if scheduler is None else scheduler,
    )
    with running(prepare):
        prompts = [result for _, result in replies(prepare, requests)]
    streamed, results = [""] * len(requests), dict[str, Any]()
    with running(answer) as scheduler:
        sent = 0
        while len(results) < len(requests):
            while sent < len(requests) and (len(results) == sent or not in_turn):
                payload = StagePayload(str(sent), requests[sent].without_inputs(), prompts[sent])
                scheduler.inbox.put(IncomingMessage(str(sent), "new_request", payload))
                sent += 1
            message = scheduler.outbox.get(60)
            assert message is not None
            if message.type == "error":
                raise message.data
            if message.type == "stream":
                streamed[int(message.request_id)] += message.data.text
            else:
                results[message.request_id] = message.data
        if counters is not None:
            counters.update(scheduler.statistics())
    return [(each, results[str(number)]) for number, each in enumerate(streamed)]


@pytest.mark.parametrize("architecture", FITTING)
def test_ids_at_once_equal_those_of_generate_and_streams_equal_texts(architecture: str) -> None:
    folder = causal.checkpoint(architecture)
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


def test_preempted_requests_and_shared_prefixes_have_the_same_ids() -> None:
    """With a window, a soft cap and plain layers."""
    folder = causal.checkpoint("Gemma2ForCausalLM")
    requests = [say(text, max_new_tokens=20) for text in TEXTS[:4]]
    alone = [answered(folder, [each])[0][1].token_ids for each in requests]
    counters: dict[str, float] = {}
    found = answered(folder, requests * 2, counters, kv_blocks=8)
    assert counters["preemptions"] > 0
    assert [result.token_ids for _, result in found] == alone * 2
    again = answered(folder, requests * 2, counters, in_turn=True)
    assert counters["reused_positions"] > 0
    assert [result.token_ids for _, result in again] == alone * 2


def test_a_seed_gives_the_same_text_alone_and_beside_others() -> None:
    folder, asked = causal.checkpoint("LlamaForCausalLM"), {"temperature": 1.0, "max_new_tokens": 16}
    [(_, alone)] = answered(folder, [say("Hello", seed=3, **asked)])
    beside = answered(folder, [say("Hello", seed=seed, **asked) for seed in (3, 4)])
    assert alone.token_ids == beside[0][1].token_ids != beside[1][1].token_ids


def test_a_stop_string_ends_the_text_before_it() -> None:
    folder = causal.checkpoint("LlamaForCausalLM")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    unreadable = [number for number in range(264) if not tokenizer.decode([number]).isalpha()]
    asked = {"max_new_tokens": 20, "suppressed_ids": unreadable}
    [(_, whole)] = answered(folder, [say("Hello", **asked)])
    stop = whole.text[4:6]
    [(streamed, cut)] = answered(folder, [say("Hello", **asked, stop=[stop])])
    assert cut.text == whole.text[: whole.text.index(stop)] == streamed
    assert (whole.finish_reason, cut.finish_reason) == ("length", "stop")
    assert len(cut.token_ids) == len(cut.text) + 2
    assert cut.usage == {"prompt_tokens": 22, "completion_tokens": len(cut.token_ids)}


def test_ids_that_the_checkpoint_suppresses_are_never_chosen(tmp_path: Path) -> None:
    folder = shutil.copytree(causal.checkpoint("LlamaForCausalLM"), tmp_path / "suppressing")
    [(_, plain)] = answered(folder, [say("Hello", max_new_tokens=8)])
    config = GenerationConfig.from_pretrained(folder)
    config.suppress_tokens = sorted(set(plain.token_ids))
    suppressing = shutil.copytree(folder, tmp_path / "more")
    config.save_pretrained(suppressing)
    [(_, result)] = answered(suppressing, [say("Hello", max_new_tokens=8)])
    assert not set(result.token_ids) & set(plain.token_ids)
    assert result.token_ids == reference(suppressing, "Hello", 8)[0]


def test_the_engine_by_name_is_a_stage_of_parts() -> None:
    folder, asked = causal.checkpoint("LlamaForCausalLM"), [say("Hello", max_new_tokens=8)]
    answer = transformers(str(folder), backend="engine").stages[1]
    assert answer.factory is None
    assert answer.model_runner is not None
    given = {**answer.factory_args, "model_path": str(folder), "block_size": 8}
    scheduler = assemble(answer.model_runner, "omni_torch.api:EngineScheduler", **given)
    [(_, result)] = answered(folder, asked, scheduler=scheduler)
    [(_, plain)] = answered(folder, asked)
    assert result.token_ids == plain.token_ids


def test_a_malformed_request_fails_before_it_is_computed() -> None:
    with pytest.raises(InvalidRequestError, match=r"params.answer.temperature"):
        answered(causal.checkpoint("LlamaForCausalLM"), [say("Hello", temperature=-1)])
