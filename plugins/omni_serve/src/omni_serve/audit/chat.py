"""Checks of chats: the order of their events, their usage, and that streaming changes nothing."""

from __future__ import annotations

from typing import Any

from omni_serve.audit.borders import clicks
from omni_serve.audit.subject import CHAT, Fault, NotOffered, Samples, Subject, compare, decoded, samples
from omni_serve.remote import DONE


async def order(subject: Subject) -> str:
    """Look at the events of a streamed chat, one after the other."""
    subject.need_chat()
    found = [data for _, data in await subject.stream(CHAT, subject.chat_body(stream=True))]
    if not found or found[-1] != DONE:
        raise Fault("the last event is not [DONE]")
    chunks = found[:-1]
    if not chunks:
        raise Fault("there are no events before [DONE]")
    for each in chunks:
        if each == DONE:
            raise Fault("[DONE] comes before the end")
        if each.get("object") != "chat.completion.chunk":
            raise Fault(f"an event's object is {each.get('object')!r}, not 'chat.completion.chunk'")
    if len({each.get("id") for each in chunks}) != 1:
        raise Fault("the id changes from event to event")
    choices = [choice for each in chunks for choice in each["choices"]]
    if not choices or choices[0].get("delta", {}).get("role") != "assistant":
        raise Fault("the first delta does not say role: assistant")
    ends = [index for index, choice in enumerate(choices) if choice.get("finish_reason")]
    if len(ends) != 1:
        raise Fault(f"finish_reason comes {len(ends)} times, not once")
    after = choices[ends[0] + 1 :]
    if any(choice.get("delta", {}).get("content") for choice in after):
        raise Fault("there is text after finish_reason")
    return f"role, {len(chunks) - 2 if len(chunks) > 2 else 0} deltas, {choices[ends[0]]['finish_reason']}, [DONE]"


async def usage(subject: Subject) -> str:
    """Ask for usage at the end of a stream, and do not ask."""
    subject.need_chat()
    chunks = await subject.chunks(subject.chat_body(stream_options={"include_usage": True}))
    found = [each for each in chunks if each.get("usage")]
    if len(found) != 1 or found[0] is not chunks[-1]:
        raise Fault(f"with include_usage, {len(found)} chunks have usage; the last, and only it, must")
    if found[0]["choices"] != []:
        raise Fault("the chunk with usage has choices; clients expect an empty list")
    numbers = found[0]["usage"]
    try:
        total = numbers["prompt_tokens"] + numbers["completion_tokens"]
    except (KeyError, TypeError):
        raise Fault(f"usage is {numbers}") from None
    if total != numbers.get("total_tokens"):
        raise Fault(f"total_tokens is {numbers.get('total_tokens')}, the sum is {total}")
    if any(each.get("usage") for each in await subject.chunks(subject.chat_body())):
        raise Fault("usage comes without being asked for")
    return f"{numbers['prompt_tokens']} + {numbers['completion_tokens']} = {total} tokens, in a chunk of its own"


async def text_equal(subject: Subject) -> str:
    """Compare a streamed text with the whole one."""
    subject.need_chat()
    body = _fixed(subject, subject.chat_body())
    whole = (await subject.post(CHAT, body)).json()["choices"][0]["message"]["content"]
    streamed = "".join(each.get("content") or "" for each in deltas(await subject.chunks(body)))
    if streamed != whole:
        raise Fault(f"streamed {streamed[:60]!r}, whole {str(whole)[:60]!r}")
    return f"{len(whole)} characters"


async def text_repeats(subject: Subject) -> str:
    """Ask twice with one seed."""
    subject.need_chat()
    if "seed" not in subject.chat_fixed:
        raise NotOffered("seed is refused")
    body = subject.chat_body(seed=subject.chat_fixed["seed"])
    first, second = [(await subject.post(CHAT, body)).json()["choices"][0]["message"]["content"] for _ in range(2)]
    if first != second:
        raise Fault(f"{str(first)[:60]!r}, then {str(second)[:60]!r}")
    return f"{len(first)} characters, twice"


async def audio_order(subject: Subject) -> str:
    """Look at the pieces of a spoken answer."""
    subject.need_chat(sound=True)
    parts = [each["audio"] for each in deltas(await subject.chunks(subject.chat_body(sound=True))) if each.get("audio")]
    if not parts:
        raise Fault("no delta has audio")
    if not parts[0].get("id"):
        raise Fault("the first audio delta has no id")
    if len({each["id"] for each in parts if each.get("id")}) != 1:
        raise Fault("the id of the audio changes")
    sounds = [each for each in parts if each.get("data")]
    if not sounds:
        raise Fault("there is no sound")
    if "expires_at" not in parts[-1] or parts[-1].get("data"):
        raise Fault("the last audio delta must have expires_at, and no data")
    if not any(each.get("transcript") for each in parts):
        raise Fault("there is no transcript")
    return f"id, {len(sounds)} pieces of sound, transcript, expires_at"


async def audio_pieces(subject: Subject) -> str:
    """Join the base64 texts, as OpenAI's client does."""
    subject.need_chat(sound=True)
    pieces = [decoded(each) for each in await _audio_texts(subject)]
    if any(each[:4] == b"RIFF" for each in pieces):
        raise Fault("a piece begins with a WAV header; pcm16 was asked for")
    for number, each in enumerate(pieces[:-1]):
        if len(each) % 6:
            raise Fault(f"piece {number} has {len(each)} bytes, not a multiple of 6: joined base64 does not decode")
    if len(pieces[-1]) % 2:
        raise Fault("the sound ends in half a sample")
    return f"{len(pieces)} pieces, all but the last multiples of 6 bytes"


async def audio_equal(subject: Subject) -> str:
    """Compare streamed speech with the whole of it."""
    subject.need_chat(sound=True)
    body = _fixed(subject, subject.chat_body(sound=True))
    audio = (await subject.post(CHAT, body)).json()["choices"][0]["message"].get("audio") or {}
    whole = decoded(audio.get("data"))
    return compare(whole, b"".join(decoded(each) for each in await _audio_texts(subject)))


async def audio_borders(subject: Subject) -> str:
    """Listen for clicks where pieces meet."""
    subject.need_chat(sound=True)
    return border_line([decoded(each) for each in await _audio_texts(subject)], "events")


def border_line(pieces: list[bytes], what: str) -> str:
    """Return a line on sound without clicks.

    Raises:
        Fault: there are clicks. NotOffered: there are no borders.
    """
    found: list[Samples] = []
    left = b""
    for piece in pieces:  # a border may be within a sample
        data = left + piece
        cut = len(data) - len(data) % 2
        left = data[cut:]
        found.append(samples(data[:cut]))
    found = [each for each in found if len(each)]
    if len(found) < 2:
        raise NotOffered("the sound came in one piece")
    if bad := clicks(found):
        worst = max(bad, key=lambda each: each.jump)
        raise Fault(
            f"{len(bad)} of {len(found) - 1} borders click; worst at {worst.position / 24_000:.3f} s: "
            f"a jump of {worst.jump:.3f}, around it {worst.usual:.3f}"
        )
    return f"{len(found) - 1} borders between {what}"


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the deltas of chunks."""
    return [choice.get("delta") or {} for each in chunks for choice in each.get("choices") or ()]


async def _audio_texts(subject: Subject) -> list[str]:
    chunks = await subject.chunks(_fixed(subject, subject.chat_body(sound=True)))
    found = [each["audio"]["data"] for each in deltas(chunks) if (each.get("audio") or {}).get("data")]
    if not found:
        raise Fault("the stream has no sound in delta.audio.data")
    return found


def _fixed(subject: Subject, body: dict[str, Any]) -> dict[str, Any]:
    """Add what makes two answers comparable."""
    if not subject.chat_fixed and subject.chat is None:
        raise NotOffered("neither seed nor temperature is accepted: two answers need not be equal")
    return {**body, **subject.chat_fixed}
