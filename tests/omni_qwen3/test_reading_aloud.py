"""The prompt of a text that is to be spoken: the assistant has begun its message with it, and nothing changes the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import InvalidRequestError, RequestTooLargeError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_media.source import Limits
from omni_qwen3.chat import READ_ALOUD
from omni_qwen3.decode import tokenizer_of
from omni_qwen3.preprocessing import Preprocessor
from omni_qwen3.routing import route_thinker, terminal_stages


@pytest.fixture(scope="module")
def preprocess(tiny: dict[str, Path]) -> Preprocessor:
    return Preprocessor(str(tiny["a"]), Limits(), video_fps=2.0, max_context=300)


def decoded(folder: Path, ids: list[int]) -> str:
    return str(tokenizer_of(str(folder)).decode(ids, skip_special_tokens=False))


def spoken(*messages: tuple[str, Any], **inputs: Any) -> StagePayload:
    made = [{"role": role, "content": content} for role, content in messages]
    return StagePayload("r", OmniRequest({"messages": made, **inputs}, modalities=["speech"]), None)


TEXTS = ("Hello.", "Two  spaces,\na line,\n\nand Ünïcöde: 東京 🎉.", 'I said: "no". <b>&amp;</b> {text} <tool_call>')


def test_the_text_stands_behind_the_same_prompt_as_it_is(tiny: dict[str, Path], preprocess: Preprocessor) -> None:
    prompts = set()
    for text in TEXTS:
        data = preprocess(spoken(("user", f" {text}\n")))
        ids = data["input_ids"].tolist()
        assert decoded(tiny["a"], ids[-data["given"] :]) == text
        prompts.add(decoded(tiny["a"], ids[: -data["given"]]))
        assert data["positions"].shape == (3, len(ids))
    [prompt] = prompts
    assert prompt.endswith(f"<|im_start|>user\n{READ_ALOUD}<|im_end|>\n<|im_start|>assistant\n")


def test_a_system_message_says_how(tiny: dict[str, Path], preprocess: Preprocessor) -> None:
    data = preprocess(spoken(("system", "Whisper it."), ("user", "Hello.")))
    written = decoded(tiny["a"], data["input_ids"].tolist())
    assert written.endswith(f"user\nWhisper it.\n\n{READ_ALOUD}<|im_end|>\n<|im_start|>assistant\nHello.")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (spoken(("user", "a"), ("assistant", "b"), ("user", "c")), "one message of the user"),
        (spoken(("assistant", "b")), "one message of the user"),
        (spoken(("user", "  ")), "nothing to speak"),
        (spoken(("user", "So <|im_end|> it ends")), "reserved"),
        (spoken(("system", "<|im_start|>"), ("user", "a")), "reserved"),
        (spoken(("user", [{"type": "image", "path": "a.png"}])), "speaks text and takes nothing else"),
        (spoken(("system", [{"type": "image", "path": "a.png"}]), ("user", "a")), "no media"),
        (spoken(("user", "a"), tools=[{"type": "function", "function": {"name": "f"}}]), "no tools"),
    ],
)
def test_what_cannot_be_spoken_is_named(preprocess: Preprocessor, payload: StagePayload, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        preprocess(payload)


def test_a_text_that_the_context_cannot_hold_is_refused(preprocess: Preprocessor) -> None:
    with pytest.raises(RequestTooLargeError, match="the context holds 300"):
        preprocess(spoken(("user", "one two three " * 100)))


def test_it_is_spoken_and_not_written() -> None:
    request = spoken(("user", "a")).request
    assert terminal_stages(request) == ["code2wav"]
    assert route_thinker("r", StagePayload("r", request, None)) == ["talker_ar"]
    with pytest.raises(InvalidRequestError, match="ask for it alone"):
        terminal_stages(OmniRequest(modalities=["text", "speech"]))
