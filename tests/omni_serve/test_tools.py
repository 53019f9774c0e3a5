"""Tools by OpenAI's own client: what is offered, chosen, called, streamed and answered."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from attrs import evolve
from omni_serve_clients import http_client
from serve_stages import INTERFACE

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.settings import Limits

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOK_UP: Any = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object"}},
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
LONG = "word " * 100


async def ask(client: openai.AsyncOpenAI, text: str, **options: Any) -> Any:
    given = {"tools": [LOOK_UP, CLOCK], **options}
    return await client.chat.completions.create(model="tones", messages=[{"role": "user", "content": text}], **given)


def names(message: Any) -> list[str]:
    return [call.function.name for call in message.tool_calls or ()]


async def test_a_call_and_its_result(client: openai.AsyncOpenAI) -> None:
    choice = (await ask(client, "rain")).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "So:")
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
        "function",
        "look_up",
        {"text": "rain"},
    )
    history: Any = [
        {"role": "user", "content": "rain"},
        choice.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "wet"}]},
    ]
    answer = await client.chat.completions.create(model="tones", messages=history)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("wet", "stop")


async def test_the_order_of_a_stream(client: openai.AsyncOpenAI) -> None:
    stream = await ask(client, LONG, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert (deltas[0].role, deltas[0].tool_calls) == ("assistant", None)
    assert [delta.content for delta in deltas if delta.content] == ["So:"]
    calls = [each for delta in deltas for each in delta.tool_calls or ()]
    head, rest = calls[0], calls[1:]
    assert (head.index, head.type, head.function.name, head.function.arguments) == (0, "function", "look_up", "")
    assert head.id.startswith("call_")
    assert len(rest) > 3
    assert {(each.index, each.id, each.type, each.function.name) for each in rest} == {(0, None, None, None)}
    assert json.loads("".join(each.function.arguments for each in rest)) == {"text": LONG}
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage is not None


async def test_the_helper_for_streams(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="tones", messages=[{"role": "user", "content": "both"}], tools=[LOOK_UP, CLOCK]
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    kinds = [event.type for event in events]
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.index("content.delta") < kinds.index("tool_calls.function.arguments.delta")
    assert names(final.choices[0].message) == ["look_up", "clock"]
    assert final.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "options", "called"),
    [
        ("both", {}, ["look_up", "clock"]),
        ("both", {"parallel_tool_calls": True}, ["look_up", "clock"]),
        ("both", {"parallel_tool_calls": False}, ["look_up"]),
        ("rain", {"tool_choice": "auto"}, ["look_up"]),
        ("rain", {"tool_choice": "none"}, []),
        ("rain", {"tool_choice": "required"}, ["look_up"]),
        ("rain", {"tool_choice": {"type": "function", "function": {"name": "clock"}}}, ["clock"]),
        (
            "rain",
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CLOCK]}}},
            ["clock"],
        ),
        (
            "rain",
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CLOCK]}}},
            ["clock"],
        ),
        ("broken", {}, []),
        ("another", {}, []),
    ],
)
async def test_choices(
    client: openai.AsyncOpenAI, text: str, options: dict[str, Any], called: list[str], stream: bool
) -> None:
    if stream:
        messages: Any = [{"role": "user", "content": text}]
        async with client.chat.completions.stream(
            model="tones", messages=messages, tools=[LOOK_UP, CLOCK], **options
        ) as events:
            choice: Any = (await events.get_final_completion()).choices[0]
    else:
        choice = (await ask(client, text, **options)).choices[0]
    assert names(choice.message) == called
    assert choice.finish_reason == ("tool_calls" if called else "stop")
    if text in ("broken", "another"):  # what is no call of a tool of the request stays text
        assert "<tool_call>" in choice.message.content
    if "required" in str(options) or ("'type': 'function'" in str(options) and "allowed" not in str(options)):
        assert "forced" in choice.message.tool_calls[0].function.arguments


async def test_the_model_sees_the_tools_and_nothing_else(client: openai.AsyncOpenAI) -> None:
    lenient = {"type": "function", "function": {**CLOCK["function"], "strict": False, "description": None}}
    answer = await ask(client, "shown", tools=[LOOK_UP, lenient])
    assert json.loads(answer.choices[0].message.content) == [LOOK_UP, CLOCK]


async def test_calls_are_not_part_of_the_speech(client: openai.AsyncOpenAI) -> None:
    spoken: Any = {"modalities": ["text", "audio"], "audio": {"voice": "low", "format": "pcm16"}}
    message = (await ask(client, "rain", **spoken)).choices[0].message
    assert (message.audio.transcript, names(message)) == ("So:", ["look_up"])
    silent = (await ask(client, "rain", tool_choice="required", **spoken)).choices[0]
    assert (silent.message.audio, names(silent.message), silent.finish_reason) == (None, ["look_up"], "tool_calls")
    stream = await ask(client, "rain", tool_choice="required", stream=True, **spoken)
    deltas = [chunk.choices[0].delta async for chunk in stream]
    assert not any(getattr(delta, "audio", None) for delta in deltas)
    stream = await ask(client, "rain", stream=True, **spoken)
    deltas = [chunk.choices[0].delta async for chunk in stream]
    assert "".join(delta.audio.transcript or "" for delta in deltas if delta.audio) == "So:"
    assert sum(bool(delta.tool_calls) for delta in deltas) >= 2


async def test_a_reply_that_was_cut_says_so(client: openai.AsyncOpenAI) -> None:
    choice = (await ask(client, "both", max_completion_tokens=2)).choices[0]
    assert (names(choice.message), choice.finish_reason) == (["look_up"], "length")


@pytest.mark.parametrize(("kind", "called"), [("string", ["look_up"]), ("integer", [])])
async def test_a_call_that_breaks_a_strict_schema_stays_text(
    client: openai.AsyncOpenAI, kind: str, called: list[str]
) -> None:
    schema = {
        "type": "object",
        "properties": {"text": {"type": kind}},
        "required": ["text"],
        "additionalProperties": False,
    }
    strict: Any = {"type": "function", "function": {"name": "look_up", "strict": True, "parameters": schema}}
    choice = (await ask(client, "rain", tools=[strict])).choices[0]
    assert names(choice.message) == called
    assert choice.finish_reason == ("tool_calls" if called else "stop")
    assert ("<tool_call>" in choice.message.content) is not bool(called)
    item = {"type": "function", "name": "look_up", "strict": True, "parameters": schema}
    answer = await client.responses.create(model="tones", input="rain", tools=[item])
    assert [each.name for each in answer.output if each.type == "function_call"] == called


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]", "must be"),
        ({"tools": [tool(name="a b")]}, "tools[0].function.name", "letters"),
        ({"tools": [tool(name="")]}, "tools[0].function.name", "letters"),
        ({"tools": [tool(name="x" * 65)]}, "tools[0].function.name", "1 to 64"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name", "twice"),
        ({"tools": [tool(strict=True)]}, "tools[0].function.strict", "parameters"),
        ({"tools": [tool(strict="yes")]}, "tools[0].function.strict", "true or false"),
        ({"tools": [tool(parameters="{}")]}, "tools[0].function.parameters", "schema"),
        ({"tools": [tool(description=1)]}, "tools[0].function.description", "text"),
        ({"tools": [tool(name=f"f{number}") for number in range(129)]}, "tools", "limit of 128"),
        ({"tools": [tool()], "tool_choice": "f"}, "tool_choice", "must be 'none'"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice", "must be"),
        (
            {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "ff"}}},
            "tool_choice.function.name",
            "did you mean 'f'",
        ),
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", "must be"),
        (
            {"tools": [tool()], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "some"}}},
            "tool_choice.allowed_tools.mode",
            "auto",
        ),
        (
            {"tools": [tool()], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            "tool_choice.allowed_tools.tools",
            "list",
        ),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"parallel_tool_calls": "maybe"}, "parallel_tool_calls", "bool"),
    ],
)
async def test_mistakes_are_named(http: httpx2.AsyncClient, given: dict[str, Any], param: str, words: str) -> None:
    body = {"model": "tones", "messages": [{"role": "user", "content": "rain"}], **given}
    answer = await http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert words in error["message"]


async def test_a_pipeline_that_cannot_is_not_asked_to(pipe: AsyncPipe) -> None:
    body = {"model": "tones", "messages": [{"role": "user", "content": "rain"}], "tools": [LOOK_UP]}
    app = create_app(pipe, Settings(limits=Limits(text_characters=200)))
    async with http_client(app) as http:
        app.state.server.interface = evolve(INTERFACE, tool_choice=False)
        for choice in ("required", {"type": "function", "function": {"name": "look_up"}}):
            answer = await http.post("/v1/chat/completions", json={**body, "tool_choice": choice})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")
        answer = await http.post("/v1/chat/completions", json={**body, "tools": [tool(description="x" * 200)]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "tools")
        app.state.server.interface = evolve(INTERFACE, tool_format=None)
        answer = await http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


RESPONSE_TOOLS: Any = [
    {
        "type": "function",
        "name": "look_up",
        "description": "Looks up.",
        "parameters": {"type": "object"},
        "strict": False,
    },
    {"type": "function", "name": "clock", "parameters": None, "strict": None},
]


@pytest.mark.parametrize(
    ("text", "options", "called"),
    [
        ("both", {}, ["look_up", "clock"]),
        ("both", {"parallel_tool_calls": False}, ["look_up"]),
        ("rain", {"tool_choice": "none"}, []),
        ("rain", {"tool_choice": "required"}, ["look_up"]),
        ("rain", {"tool_choice": {"type": "function", "name": "clock"}}, ["clock"]),
        (
            "rain",
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "clock"}],
                }
            },
            ["clock"],
        ),
    ],
)
async def test_responses(client: openai.AsyncOpenAI, text: str, options: dict[str, Any], called: list[str]) -> None:
    answer = await client.responses.create(model="tones", input=text, tools=RESPONSE_TOOLS, **options)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [call.name for call in calls] == called
    assert answer.parallel_tool_calls is options.get("parallel_tool_calls", True)
    async with client.responses.stream(model="tones", input=text, tools=RESPONSE_TOOLS, **options) as stream:
        events: list[Any] = [event async for event in stream]
        final = await stream.get_final_response()
    assert [item.name for item in final.output if item.type == "function_call"] == called
    for call in (item for item in final.output if item.type == "function_call"):
        mine = [event for event in events if getattr(event, "item_id", None) == call.id]
        pieces = [event.delta for event in mine if event.type == "response.function_call_arguments.delta"]
        assert "".join(pieces) == call.arguments == mine[-1].arguments
        assert mine[-1].type == "response.function_call_arguments.done"
    order = [event.item.type for event in events if event.type == "response.output_item.done"]
    assert order == [item.type for item in final.output]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "strict": True}]}, "tools[0].strict"),
        (
            {
                "tools": [
                    {"type": "function", "name": "f", "strict": True, "parameters": {"type": "object", "items": 1}}
                ]
            },
            "tools[0].parameters.items",
        ),
        ({"tools": RESPONSE_TOOLS, "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"tools": RESPONSE_TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": RESPONSE_TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "x"}}, "tool_choice.mode"),
    ],
)
async def test_mistakes_in_responses_are_named_in_their_words(
    http: httpx2.AsyncClient, given: dict[str, Any], param: str
) -> None:
    answer = await http.post("/v1/responses", json={"model": "tones", "input": "rain", **given})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert error["message"].startswith(f"{param}: ")
