"""The list of checks, and running them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

import httpx2
from attrs import frozen

from omni_serve.audit import chat, disconnects, errors, images, keys, realtime, speech
from omni_serve.audit.subject import Fault, NotOffered, Subject
from omni_serve.remote import BadStreamError

Verdict = Literal["pass", "fail", "not offered"]


@frozen
class Check:
    """One check: its name, what it shows, and what finds it out."""

    name: str
    title: str
    run: Callable[[Subject], Awaitable[str]]


@frozen
class Result:
    """The outcome of a check, with one line why."""

    name: str
    title: str
    verdict: Verdict
    why: str


CHECKS = [
    Check("error-model", "An unknown model is 404", errors.unknown_model),
    Check("error-missing", "A missing key is 400 and named", errors.missing_key),
    Check("error-type", "A wrong type is 400 and named", errors.wrong_type),
    Check("error-parameter", "An unknown parameter is 400 and named", errors.unknown_parameter),
    Check("error-json", "A body that is not JSON is 400", errors.bad_json),
    Check("error-route", "An unknown path is 404", errors.unknown_route),
    Check("error-picture", "A broken picture is 400", errors.broken_picture),
    Check("error-key", "A wrong key is 401", errors.wrong_key),
    Check("key-coverage", "Every route asks for a key", keys.key_coverage),
    Check("chat-order", "Order of a chat's events", chat.order),
    Check("chat-usage", "Usage has a chunk of its own", chat.usage),
    Check("chat-equal", "Streamed text equals the whole", chat.text_equal),
    Check("chat-seed", "A seed repeats a text", chat.text_repeats),
    Check("audio-order", "Order of a spoken answer's events", chat.audio_order),
    Check("audio-pieces", "Base64 pieces may be joined", chat.audio_pieces),
    Check("audio-equal", "Streamed answer sounds like the whole", chat.audio_equal),
    Check("audio-clicks", "No clicks in a spoken answer", chat.audio_borders),
    Check("speech-formats", "Formats are what they say", speech.formats),
    Check("speech-order", "Order of speech events", speech.event_order),
    Check("speech-equal", "Speech in events equals bytes", speech.equal),
    Check("speech-seed", "A seed repeats speech", speech.repeats),
    Check("speech-clicks", "No clicks in speech", speech.borders),
    Check("image-whole", "An image is what the answer says", images.whole),
    Check("image-formats", "Formats of images are what they say", images.formats),
    Check("image-order", "Previews come before the image", images.order),
    Check("image-refusals", "Sizes that are none are 400 and named", images.refusals),
    Check("image-edit", "An edit needs an image", images.edit),
    Check("realtime-session", "A session describes itself", realtime.session),
    Check("realtime-order", "Order of a session's events", realtime.order),
    Check("realtime-turn", "The server finds a spoken turn", realtime.turn),
    Check("realtime-manual", "A turn committed by hand", realtime.manual),
    Check("realtime-barge-in", "A user who speaks interrupts", realtime.interruption),
    Check("realtime-cancel", "A cancelled response ends", realtime.cancel),
    Check("realtime-errors", "Wrong events are errors and named", realtime.errors),
    Check("disconnects", "A lost client frees the server", disconnects.disconnects),
]


async def run_check(check: Check, subject: Subject, seconds: float) -> Result:
    """Run one check; whatever goes wrong is a verdict."""
    verdict: Verdict = "pass"
    try:
        async with asyncio.timeout(seconds):
            why = await check.run(subject)
    except NotOffered as error:
        verdict, why = "not offered", str(error)
    except Fault as error:
        verdict, why = "fail", str(error)
    except BadStreamError as error:
        verdict, why = "fail", str(error)
    except (TimeoutError, httpx2.TimeoutException):
        verdict, why = "fail", f"no answer within {seconds:g} s"
    except httpx2.TransportError as error:
        verdict, why = "fail", f"the connection broke: {error}"
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        verdict, why = "fail", f"an answer has another form: {type(error).__name__}: {error}"
    return Result(check.name, check.title, verdict, why)


async def audit(subject: Subject, checks: Iterable[Check], seconds: float, on_result: Callable[[Result], None]) -> None:
    """Run checks one after the other: they time and compare answers."""
    for check in checks:
        on_result(await run_check(check, subject, seconds))
