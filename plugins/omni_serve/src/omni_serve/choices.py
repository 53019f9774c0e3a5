"""Several choices of one answer: as many requests of the pipeline, whose answers are joined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

from attrs import frozen
from pydantic import BeforeValidator, Field

from omni_core.api import SEED
from omni_serve.streams import DONE, event
from omni_serve.usage import of_chat

if TYPE_CHECKING:
    from omni_serve.chat import Chat

MOST_CHOICES = 16
"""Choices of one answer. Each counts as a request."""

Count = Annotated[
    int,
    BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n),
    Field(ge=1, le=MOST_CHOICES),
]
"""The number of choices; 1.0 is 1 in JSON."""

_AHEAD = 32
"""Events that a choice may be ahead of the client."""


def seeded(params: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the parameters of choice ``index``: seeds are raised by it."""
    return {
        name: value + index
        if name == SEED and isinstance(value, int)
        else seeded(value, index)
        if isinstance(value, dict) and SEED in value
        else value
        for name, value in params.items()
    }


def total(usages: Sequence[Mapping[str, int]], *, prompts_differ: bool = False) -> dict[str, int]:
    """Return the tokens of all choices. They have their prompt in common, unless ``prompts_differ``."""
    found: dict[str, int] = {}
    for usage in usages:
        for name, count in usage.items():
            is_shared = name.startswith("prompt") and not prompts_differ
            found[name] = count if is_shared else found.get(name, 0) + count
    return found


@frozen
class Choices:
    """The choices of one chat."""

    chats: Sequence[Chat]

    async def whole(self) -> dict[str, Any]:
        """Return the ``chat.completion`` object."""
        first = self.chats[0]
        choices = (
            [await first.choice()] if len(self.chats) == 1 else await together([each.choice() for each in self.chats])
        )
        usage = of_chat(total([each.call.usage for each in self.chats]))
        answer = {**first.common("chat.completion"), "choices": choices, "usage": usage}
        if first.call.notices:
            answer["notices"] = first.call.notices
        return answer

    async def stream(self, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Yield the server-sent events."""
        async with aclosing(interleaved([each.events(include_usage=include_usage) for each in self.chats])) as events:
            async for each in events:
                yield each
        usages = [each.call.usage for each in self.chats] if include_usage else None
        yield stream_end(self.chats[0].common("chat.completion.chunk"), usages)


def stream_end(common: Mapping[str, Any], usages: Sequence[Mapping[str, int]] | None) -> bytes:
    """Return what ends a stream, with the usage of its choices where it is asked for."""
    usage = b"" if usages is None else event({**common, "choices": [], "usage": of_chat(total(usages))})
    return usage + DONE


async def together(work: Sequence[Any]) -> list[Any]:
    """Await all; the first that fails ends the others, and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def interleaved(streams: Sequence[AsyncGenerator[bytes]]) -> AsyncGenerator[bytes]:
    """Yield what several streams yield, as it comes. What one raises ends all."""
    queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(_AHEAD * len(streams))

    async def read(stream: AsyncGenerator[bytes]) -> None:
        end: BaseException | None = None
        try:
            async with aclosing(stream):
                async for each in stream:
                    await queue.put(each)
        except Exception as error:
            end = error
        await queue.put(end)

    tasks = [asyncio.ensure_future(read(each)) for each in streams]
    try:
        left = len(tasks)
        while left:
            found = await queue.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
