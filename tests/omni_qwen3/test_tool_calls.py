"""Tools: the prompt is what the checkpoint's chat template makes of them, a call is not spoken, a forced one is begun."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from stage_answers import decoded
from transformers import AutoTokenizer

from omni_core.errors import InvalidRequestError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage
from omni_media.source import Limits
from omni_qwen3.config import read_config
from omni_qwen3.interface import SPEECH_INTERFACE, interface_of
from omni_qwen3.payloads import ThinkerInputs
from omni_qwen3.pipeline import qwen3_omni, qwen3_omni_text
from omni_qwen3.preprocessing import Preprocessor
from omni_qwen3.thinker import ThinkerRunner
from omni_qwen3.thinker_network import load_thinker

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says if it rains, auch in Köln & 東京 <today>.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}


def call(name: str, arguments: str | dict[str, Any], identity: str = "call_1") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


USER = {"role": "user", "content": "Does it rain?"}
ASKED = {"role": "assistant", "content": None, "tool_calls": [call("weather", '{"city": "Köln"}')]}
ANSWERED = {"role": "tool", "tool_call_id": "call_1", "content": '{"rain": true}'}

CHATS: dict[str, list[dict[str, Any]]] = {
    "question": [USER],
    "with a system message": [{"role": "system", "content": "Be brief."}, USER],
    "answered": [USER, ASKED, ANSWERED],
    "two calls beside a text": [
        USER,
        {"role": "assistant", "content": "I look.", "tool_calls": [*ASKED["tool_calls"], call("clock", "{}", "b")]},
        ANSWERED,
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "noon"}]},
    ],
    "gone on": [USER, ASKED, ANSWERED, {"role": "assistant", "content": "It does."}, USER],
    "arguments that are no JSON": [
        USER,
        {**ASKED, "tool_calls": [call("weather", "{city")]},
        ANSWERED,
    ],
}


@pytest.fixture(scope="module")
def preprocess(tiny: dict[str, Path]) -> Preprocessor:
    return Preprocessor(str(tiny["a"]), Limits(), video_fps=2.0, max_context=None)


def payload(messages: Any, tools: Any = (), **more: Any) -> StagePayload:
    inputs = {"messages": messages, **({"tools": list(tools)} if tools else {}), **more}
    return StagePayload("r", OmniRequest(inputs, modalities=["text"]), None)


def as_transformers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as transformers documents them: arguments as data, no id of a call."""
    made = []
    for message in messages:
        kept = {"role": message["role"], "content": message["content"] or ""}
        if "tool_calls" in message:
            calls = [each["function"] for each in message["tool_calls"]]
            read = [each["arguments"] for each in calls]
            read = [json.loads(each) if each.endswith("}") else each for each in read]
            kept["tool_calls"] = [
                {"type": "function", "function": {"name": each["name"], "arguments": arguments}}
                for each, arguments in zip(calls, read, strict=True)
            ]
        made.append(kept)
    return made


@pytest.mark.parametrize("tools", [(), (WEATHER,), (WEATHER, TIME)], ids=["none", "one", "two"])
@pytest.mark.parametrize("name", CHATS)
def test_the_prompt_is_the_reference_s(
    tiny: dict[str, Path], preprocess: Preprocessor, name: str, tools: tuple[dict[str, Any], ...]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny["a"])
    expected = tokenizer.apply_chat_template(
        as_transformers(CHATS[name]), tools=list(tools) or None, add_generation_prompt=True, tokenize=True
    )["input_ids"]
    made = preprocess(payload(CHATS[name], tools))
    assert made["input_ids"].tolist() == expected
    text = tokenizer.decode(expected)
    assert all(json.dumps(tool, ensure_ascii=False) in text for tool in tools)
    assert ("spoken_until" in made) == bool(tools)
    if "call" in name or name == "answered":
        assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>' in text or (
            '</tool_call>\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call><|im_end|>' in text
        )
        assert "<|im_start|>user\n<tool_response>" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tools": "weather"}, r"inputs\.tools: must be a list"),
        ({"tools": [{"type": "function"}]}, r"inputs\.tools\[0\]: must be"),
        ({"tools": [{**TIME, "more": "<|im_end|>"}]}, r"inputs\.tools\[0\]: contains '<\|im_end\|>'"),
        ({"messages": [{**USER, "tool_calls": [call("f", "{}")]}]}, r"messages\[0\]\.tool_calls: only messages of the"),
        ({"messages": [{**ASKED, "tool_calls": "f"}, USER]}, r"messages\[0\]\.tool_calls: must be a list"),
        ({"messages": [{**ASKED, "tool_calls": [{}]}, USER]}, r"messages\[0\]\.tool_calls\[0\]: must be"),
        (
            {"messages": [{**ASKED, "tool_calls": [call("f", '{"a": "<|im_start|>"}')]}, USER]},
            r"tool_calls\[0\]: contains '<\|im_start\|>'",
        ),
        (
            {"messages": [USER, ASKED, {**ANSWERED, "content": "<|audio_pad|>"}]},
            r"messages\[2\]\.content\[0\]\.text: con",
        ),
    ],
)
def test_what_is_malformed_is_named(preprocess: Preprocessor, change: dict[str, Any], words: str) -> None:
    made = payload([USER], [TIME])
    with pytest.raises(InvalidRequestError, match=words):
        preprocess(evolve(made, request=evolve(made.request, inputs={**made.request.inputs, **change})))


def test_a_forced_call_is_begun_in_the_prompt_and_in_the_reply(tiny: dict[str, Path], preprocess: Preprocessor) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny["a"])
    plain = tokenizer.decode(preprocess(payload([USER], [TIME, WEATHER]))["input_ids"])
    for choice, begun in (
        ("*", '<tool_call>\n{"name":'),
        ("weather", '<tool_call>\n{"name": "weather", "arguments":'),
    ):
        made = preprocess(payload([USER], [TIME, WEATHER], tool_choice=choice))
        assert tokenizer.decode(made["input_ids"]) == plain + begun
        assert (made["begun"], made["spoken_until"]) == (begun, "")
        ids = tokenizer.encode(' {"city": "Rome"}}\n</tool_call>', add_special_tokens=False)
        pieces, whole = decoded(tiny["a"], ids, begun)
        assert "".join(pieces) == whole == begun + ' {"city": "Rome"}}\n</tool_call>'
    for choice, tools in (("rain", [TIME]), ("clock", [])):
        with pytest.raises(InvalidRequestError, match=r"inputs\.tool_choice: "):
            preprocess(payload([USER], tools, tool_choice=choice))


def test_a_template_without_tools_is_neither_offered_nor_silent(tiny: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(tiny["a"], folder)
    for pipeline in (qwen3_omni, qwen3_omni_text):
        interface = pipeline(str(folder)).interface
        assert interface is not None
        assert interface.tool_format == "tagged-json"
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['content'][0]['text'] }}{% endfor %}"
    )
    found = interface_of(str(folder), SPEECH_INTERFACE, {})
    assert (found.tool_format, found.tool_choice) == (None, False)
    with pytest.raises(InvalidRequestError, match="no place for tools"):
        Preprocessor(str(folder), Limits(), video_fps=2.0, max_context=None)(payload([USER], [TIME]))
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no tools, please') }}")
    with pytest.raises(InvalidRequestError, match="refuses them: no tools, please"):
        Preprocessor(str(folder), Limits(), video_fps=2.0, max_context=None)(payload([USER], [TIME]))


SAID = "It may rain < "


@pytest.mark.parametrize(
    ("until", "reply", "spoken"),
    [
        (None, SAID + "<tool_call>{}</tool_call>!", SAID + "<tool_call>{}</tool_call>"),
        ("<tool_call>", SAID + "<tool_call>{}</tool_call> more!", SAID),
        ("<tool_call>", SAID + "<tool_c!", SAID + "<tool_c"),
        ("<tool_call>", "<tool_call>{}</tool_call>!", ""),
        ("", ' {"city": "Rome"}}</tool_call>!', ""),
    ],
)
def test_speech_ends_where_a_call_begins(tiny: dict[str, Path], until: str | None, reply: str, spoken: str) -> None:
    config, tokenizer = read_config(tiny["a"]), AutoTokenizer.from_pretrained(tiny["a"])
    runner = ThinkerRunner(load_thinker(str(tiny["a"]), config), config, speech_enabled=True)
    ids = torch.tensor([config.im_start, config.user, 30, 31, config.im_start, config.assistant, 40])
    inputs = ThinkerInputs(input_ids=ids, positions=torch.arange(len(ids)).expand(3, -1), position_delta=0)
    if until is not None:
        inputs |= ThinkerInputs(spoken_until=until, begun="<tool_call>" if not until else "")
    made = OmniRequest(modalities=["text", "audio"])
    request = runner.receive(IncomingMessage("r", "new_request", StagePayload("r", made, inputs), request=made))
    assert request is not None
    told: list[int] = []
    written: list[int] = []
    tokens = tokenizer.encode(reply, add_special_tokens=False)
    for number, token in enumerate(tokens):
        request.output_ids.append(token)
        if number == len(tokens) - 1:
            request.finish_reason = "stop"  # the last token is never spoken
        runner.after_sampling(None, None, [(request, token)])  # type: ignore[arg-type]
        for message in runner.emit(request, token):
            if message.target == "decode":
                written += message.data
                assert message.metadata == ({"begun": "<tool_call>"} if until == "" else None)
            elif "token_ids" in message.data:
                told += message.data["token_ids"]
    assert tokenizer.decode(written) == reply
    assert tokenizer.decode(told) == spoken


def test_the_demo_offers_no_tools() -> None:
    demo = pytest.importorskip("omni_demo.speech.pipeline")
    interface = demo.demo(demo.default_model()[0]).interface
    assert interface is not None
    assert interface.tool_format is None
