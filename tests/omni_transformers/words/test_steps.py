"""Text by ``generate()`` in turns: the same ids as alone, whatever else runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from tiny_transformers import checkpoint, writers
from tiny_transformers.driving import replies, running, say, send
from transformers import AutoModelForCausalLM, AutoTokenizer

from omni_core.api import InvalidRequestError, OmniRequest
from omni_transformers.words.steps import create_writer

assert writers
TEXTS = ["Hello", "What is a stage, and what is a pipeline?", "", "ä 日本"]


@pytest.fixture(scope="module")
def llama() -> Path:
    return checkpoint("LlamaForCausalLM")


def reference(folder: Path, text: str, tokens: int) -> list[int]:
    """Return the ids of transformers' own greedy ``generate()``."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    with torch.inference_mode():
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
    found: list[int] = ids[0, inputs["input_ids"].shape[1] :].tolist()
    return found


def test_ids_at_once_equal_those_alone_and_streams_equal_texts(llama: Path) -> None:
    with running(create_writer(str(llama))) as scheduler:
        found = replies(scheduler, [say(text, answer={"max_new_tokens": 20}) for text in TEXTS])
    for text, (streamed, result) in zip(TEXTS, found, strict=True):
        assert result.token_ids == reference(llama, text, 20)
        assert "".join(each.text for each in streamed) == result.text
        assert result.usage["completion_tokens"] == len(result.token_ids)


def test_a_seed_gives_the_same_text_alone_and_beside_others(llama: Path) -> None:
    asked = {"temperature": 1.0, "max_new_tokens": 16, "seed": 3}
    with running(create_writer(str(llama))) as scheduler:
        [(_, alone)] = replies(scheduler, [say("Hello", answer=asked)])
        beside = replies(scheduler, [say("Hello", answer=asked), say("Hello", answer={**asked, "seed": 4})])
    assert alone.token_ids == beside[0][1].token_ids != beside[1][1].token_ids


def test_a_stop_string_ends_the_text_before_it(llama: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(llama)
    unreadable = [number for number in range(264) if not tokenizer.decode([number]).isalpha()]
    asked = {"max_new_tokens": 20, "suppressed_ids": unreadable}
    with running(create_writer(str(llama))) as scheduler:
        [(_, whole)] = replies(scheduler, [say("Hello", answer=asked)])
        stop = whole.text[4:6]
        [(streamed, cut)] = replies(scheduler, [say("Hello", answer={**asked, "stop": [stop]})])
    assert cut.text == whole.text[: whole.text.index(stop)] == "".join(each.text for each in streamed)
    assert cut.finish_reason == "stop"
    assert len(cut.token_ids) == len(cut.text) + 2


def test_an_abort_ends_the_call_and_others_go_on(llama: Path) -> None:
    before = threading.active_count()
    with running(create_writer(str(llama))) as scheduler:
        send(scheduler, "long", say("Hello", answer={"max_new_tokens": 100_000}))
        assert scheduler.outbox.get(60) is not None
        scheduler.abort("long")
        [(_, result)] = replies(scheduler, [say("Hello", answer={"max_new_tokens": 5})])
        assert len(result.token_ids) == 5
    assert threading.active_count() == before


def test_a_malformed_request_fails_alone(llama: Path) -> None:
    with running(create_writer(str(llama))) as scheduler:
        with pytest.raises(InvalidRequestError, match=r"messages\[0\]"):
            replies(scheduler, [OmniRequest({"messages": [{"role": "nobody", "content": "x"}]})])
        [(_, result)] = replies(scheduler, [say("Hello", answer={"max_new_tokens": 5})])
    assert len(result.token_ids) == 5


def test_a_prompt_that_fills_the_positions_is_refused_and_a_text_ends_with_them() -> None:
    folder = checkpoint("GPT2LMHeadModel")
    with running(create_writer(str(folder))) as scheduler:
        with pytest.raises(InvalidRequestError, match="2000 tokens; this model has room for 1024"):
            replies(scheduler, [say("x" * 2000)])
        [(_, result)] = replies(scheduler, [say("x" * 1020, answer={"max_new_tokens": 50})])
    assert (len(result.token_ids), result.finish_reason) == (4, "length")
