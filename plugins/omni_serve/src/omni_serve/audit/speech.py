"""Checks of ``/v1/audio/speech``: its events, its formats, and that its sound is whole however it is sent."""

from __future__ import annotations

from collections.abc import Callable

from omni_serve.audit.chat import border_line
from omni_serve.audit.subject import SPEECH, Fault, NotOffered, Subject, compare, decoded, message_of

MAGIC: dict[str, Callable[[bytes], bool]] = {
    "wav": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WAVE",
    "mp3": lambda data: data[:3] == b"ID3" or (data[:1] == b"\xff" and data[1] & 0xE0 == 0xE0 and data[1] & 0x06 != 0),
    "flac": lambda data: data[:4] == b"fLaC",
    "opus": lambda data: data[:4] == b"OggS" and b"OpusHead" in data[:64],
    "aac": lambda data: (data[:1] == b"\xff" and data[1] & 0xF6 == 0xF0) or data[4:8] == b"ftyp",
    "pcm": lambda data: len(data) % 2 == 0 and data[:4] not in (b"RIFF", b"OggS", b"fLaC") and data[:3] != b"ID3",
}
"""The first bytes of a file of each format. MP3's and ADTS' first bytes differ in the layer."""


async def formats(subject: Subject) -> str:
    """Ask for each format and look at the first bytes."""
    subject.need_speech()
    good, refused, wrong = [], [], []
    for name, is_right in MAGIC.items():
        answer = await subject.remote.http.post(SPEECH, json=subject.speech_body(response_format=name))
        if answer.status_code == 400:
            refused.append(name)
        elif answer.status_code != 200:
            wrong.append(f"{name}: {answer.status_code}: {message_of(answer)}")
        elif len(answer.content) < 12 or not is_right(answer.content):
            wrong.append(f"{name} begins with {answer.content[:8].hex(' ')}")
        elif answer.headers.get("content-type", "").partition("/")[0] != "audio":
            wrong.append(f"{name} has the content type {answer.headers.get('content-type')!r}")
        else:
            good.append(name)
    if wrong:
        raise Fault("; ".join(wrong))
    return f"{', '.join(good)}{'; refused: ' + ', '.join(refused) if refused else ''}"


async def event_order(subject: Subject) -> str:
    """Look at the events of ``stream_format: sse``."""
    subject.need_speech()
    found = await subject.stream(SPEECH, subject.speech_body(stream_format="sse"), optional=True)
    kinds = [data.get("type") if isinstance(data, dict) else data for _, data in found]
    if not kinds or kinds[-1] != "speech.audio.done" or kinds.count("speech.audio.done") != 1:
        raise Fault(f"the last event is {kinds[-1] if kinds else None!r}, not 'speech.audio.done'")
    if set(kinds[:-1]) != {"speech.audio.delta"}:
        raise Fault(f"before the end there are {sorted(set(map(str, kinds[:-1])))}, not only 'speech.audio.delta'")
    for name, data in found:
        if name and name != data["type"]:
            raise Fault(f"an event is called {name!r}, its data {data['type']!r}")
    for _, data in found[:-1]:
        decoded(data.get("audio"))
    usage = found[-1][1].get("usage")
    try:
        right = usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
    except (KeyError, TypeError):
        right = False
    if not right:
        raise Fault(f"the usage of speech.audio.done is {usage}")
    return f"{len(found) - 1} deltas, done with usage"


async def equal(subject: Subject) -> str:
    """Compare the sound in events with the sound in bytes."""
    subject.need_speech()
    body = _fixed(subject)
    found = await subject.stream(SPEECH, {**body, "stream_format": "sse"}, optional=True)
    streamed = b"".join(decoded(data["audio"]) for _, data in found if isinstance(data, dict) and "audio" in data)
    return compare((await subject.post(SPEECH, body)).content, streamed)


async def repeats(subject: Subject) -> str:
    """Ask twice with one seed."""
    subject.need_speech()
    if "seed" not in subject.speech_fixed:
        raise NotOffered("seed is refused")
    body = subject.speech_body(seed=subject.speech_fixed["seed"])
    first, second = [(await subject.post(SPEECH, body)).content for _ in range(2)]
    return compare(first, second)


async def borders(subject: Subject) -> str:
    """Listen for clicks where pieces meet."""
    subject.need_speech()
    return border_line(*await subject.spoken_pieces())


def _fixed(subject: Subject) -> dict[str, object]:
    if not subject.speech_fixed:
        raise NotOffered("neither seed nor temperature is accepted: two sounds need not be equal")
    return subject.speech_body(**subject.speech_fixed)
