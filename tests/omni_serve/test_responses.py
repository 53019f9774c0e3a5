"""The responses endpoint, by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from omni_serve.app import Application
from omni_serve.kept_responses import Turn

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOL: Any = {"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": False}


async def test_a_text(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="tones", input="one two", instructions="Be brief.")
    assert (answer.output_text, answer.status) == ("one two", "completed")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (4, 2)
    cut = await client.responses.create(model="tones", input="one two", max_output_tokens=1)
    assert (cut.status, cut.output_text) == ("incomplete", "one")
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


async def test_a_conversation(client: openai.AsyncOpenAI) -> None:
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "two", "annotations": []}],
        },
        {"role": "user", "content": "history"},
    ]
    answer = await client.responses.create(model="tones", input=items)
    assert answer.output_text == "user=one assistant=two"


async def test_the_events_of_a_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="tones", input="one two", stream=True)
    events = [each async for each in stream]
    assert [each.type for each in events] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert events[-1].response.output_text == "one two"
    async with client.responses.stream(model="tones", input="one two") as helper:
        assert (await helper.get_final_response()).output_text == "one two"


async def test_a_stream_that_fails_says_so_in_its_own_form(client: openai.AsyncOpenAI) -> None:
    # An error drops what has not been read: the pause lets the first word be read.
    stream = await client.responses.create(
        model="tones", input="one implode two", stream=True, extra_body={"pause": 0.4}
    )
    events = [each async for each in stream]
    assert [each.type for each in events][-2:] == ["response.output_text.delta", "response.failed"]
    assert [each.sequence_number for each in events] == list(range(len(events)))
    failed = events[-1].response
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert failed.error.message.startswith("The server failed; id ")
    with pytest.raises(openai.InternalServerError, match="The server failed; id "):
        await client.responses.create(model="tones", input="one implode two")
    with pytest.raises(openai.InternalServerError, match="The server failed; id "):
        await client.responses.create(model="tones", input="implode", stream=True)


async def test_calls_of_tools_and_their_results(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="tones", input="rain", tools=[TOOL])
    call = answer.output[-1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("look_up", {"text": "rain"})
    items: Any = [
        {"role": "user", "content": "rain"},
        call.model_dump(exclude={"status"}),
        {"type": "function_call_output", "call_id": call.call_id, "output": "wet"},
    ]
    assert (await client.responses.create(model="tones", input=items)).output_text == "wet"
    async with client.responses.stream(model="tones", input="rain", tools=[TOOL]) as stream:
        kinds = [event.type async for event in stream]
    assert "response.function_call_arguments.done" in kinds


@pytest.mark.parametrize("store", [None, True, False])
async def test_items_by_their_ids(app: Application, client: openai.AsyncOpenAI, store: bool | None) -> None:
    """``store: false`` keeps none, as at OpenAI; another key finds none."""
    extra = {} if store is None else {"store": store}
    answer = await client.responses.create(model="tones", input="rain", tools=[TOOL], extra_body=extra)
    said, call = answer.output
    assert call.type == "function_call"
    assert app.state.server.items.find(call.id, "another") is None
    items: Any = [
        {"role": "user", "content": "rain"},
        *({"type": "item_reference", "id": each.id} for each in (said, call)),
        {"type": "function_call_output", "call_id": call.call_id, "output": "wet"},
        {"role": "user", "content": "history"},
    ]
    if store is False:
        with pytest.raises(openai.BadRequestError, match=r"input\[1\].id: no item of this id is kept"):
            await client.responses.create(model="tones", input=items)
    else:
        answer = await client.responses.create(model="tones", input=items)
        assert answer.output_text == "user=rain assistant=So: tool=wet"
        many = [{"type": "item_reference", "id": call.id}] * 6000
        with pytest.raises(openai.APIStatusError, match=r"the items referred to are over the limit") as error:
            await client.responses.create(model="tones", input=many)
        assert error.value.status_code == 413


async def test_a_response_goes_on_from_another(app: Application, client: openai.AsyncOpenAI) -> None:
    """As if the request had brought the whole conversation, also twice from the same place, streamed, and with calls of tools."""
    first = await client.responses.create(model="tones", input="rain", instructions="Be brief.", tools=[TOOL])
    call = first.output[-1]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "wet"}
    second = await client.responses.create(model="tones", input=[result], previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("wet", first.id)
    for before, expected in (
        (second, "user=rain assistant=So: tool=wet assistant=wet"),
        (first, "user=rain assistant=So:"),
    ):
        for streams in (False, True):
            asked: Any = {"model": "tones", "input": "history", "previous_response_id": before.id}
            if streams:
                async with client.responses.stream(**asked) as stream:
                    answer = await stream.get_final_response()
            else:
                answer = await client.responses.create(**asked)
            assert answer.output_text == expected
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="No response of the id"):
        await client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match=r"no response of the id .* is kept") as error:
        await client.responses.create(model="tones", input="history", previous_response_id=first.id)
    assert error.value.code == "previous_response_not_found"
    answer = await client.responses.create(model="tones", input="history", previous_response_id=second.id)
    assert answer.output_text == "user=rain assistant=So: tool=wet assistant=wet"
    assert app.state.server.responses.find(second.id, "another") is None


async def test_responses_that_are_not_kept(client: openai.AsyncOpenAI) -> None:
    """``store: false``, and those that have failed."""
    unkept = await client.responses.create(model="tones", input="one", store=False)
    assert unkept.model_extra is not None
    assert unkept.model_extra["store"] is False
    stream = await client.responses.create(model="tones", input="one implode", stream=True, extra_body={"pause": 0.4})
    begun, *_ = [each async for each in stream]
    for identity in (unkept.id, begun.response.id):
        with pytest.raises(openai.BadRequestError, match="previous_response_id: no response of the id"):
            await client.responses.create(model="tones", input="history", previous_response_id=identity)


async def test_a_conversation_is_not_larger_than_a_request(app: Application, client: openai.AsyncOpenAI) -> None:
    server, name = app.state.server, "resp_large"
    words: Any = [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 11_000}]
    server.responses.keep(name, Turn("anyone", words, None, "s"))
    with pytest.raises(openai.APIStatusError, match="larger than a request may be") as error:
        await client.responses.create(model="tones", input="one", previous_response_id=name)
    assert error.value.status_code == 413
    words = [{"role": "user", "content": "x" * 900_000}] * 2
    server.responses.keep(name, Turn("anyone", words, None, "s"))
    with pytest.raises(openai.APIStatusError, match="over the limit of 1000000") as error:
        await client.responses.create(model="tones", input="one", previous_response_id=name)
    assert (error.value.status_code, server.body_budget.held) == (413, 0)


async def test_the_responses_of_a_conversation_stay_with_one_replica(
    app: Application, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(type(app.state.server), "stay", lambda self, session, metadata: asked.append(session))
    first = await client.responses.create(model="tones", input="one")
    second = await client.responses.create(model="tones", input="two", previous_response_id=first.id)
    await client.responses.create(model="tones", input="three", previous_response_id=second.id)
    await client.responses.create(model="tones", input="four", store=False)
    assert asked == [first.id] * 3
    await client.responses.create(model="tones", input="four", extra_headers={"x-omni-session": "mine"}, store=False)
    assert asked[3:] == ["mine"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": []}, "input"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"include": ["message.output_text.logprobs"]}, "include.message.output_text.logprobs"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"input": [{"type": "reasoning", "id": "x", "summary": []}]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"stream": True, "input": "refuse"}, "input"),
        ({"input": 3}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"metadata": 5}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"input": [{"role": "judge", "content": "x"}], "instructions": "y"}, "input[0].role"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_smell"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://localhost/x"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": "refuse"}]}, "input[0].content"),
    ],
)
async def test_what_is_not_offered_is_named(http: httpx2.AsyncClient, given: dict[str, Any], param: str) -> None:
    answer = await http.post("/v1/responses", json={"model": "tones", "input": "one", **given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(("name", "value"), [("messages", []), ("modalities", ["text"]), ("audio", {"voice": "low"})])
async def test_parameters_of_chats_are_refused_by_name(client: openai.AsyncOpenAI, name: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=f"{name}: belongs to /v1/chat/completions"):
        await client.responses.create(model="tones", input="one", extra_body={name: value})


async def test_what_changes_nothing_is_accepted(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="tones",
        input="one",
        store=False,
        text={"format": {"type": "text"}, "verbosity": "medium"},
        reasoning={"effort": None, "summary": None},
        truncation="disabled",
        metadata={"a": "b"},
    )
    assert (answer.output_text, answer.metadata) == ("one", {"a": "b"})
    stream = await client.responses.create(
        model="tones", input="one", stream=True, stream_options={"include_obfuscation": False}
    )
    assert [event.type async for event in stream][-1] == "response.completed"
