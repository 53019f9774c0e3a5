"""Sound that is still coming, written down by recognisers that read windows: one after the other, as they overlap and agree.

Each window is a request like that for a whole recording, so those of several sounds share what whole recordings share.
"""

from __future__ import annotations

from typing import Any, TypeVar

from attrs import define, evolve, field, frozen

from omni_core.api import IncomingMessage, InvalidRequestError, OutgoingMessage, StagePayload, Transcript
from omni_torch.api import StepScheduler
from omni_transformers.calls.lines import Line
from omni_transformers.interleaved import Interleaved
from omni_transformers.recognise.agreement import Agreement, Window
from omni_transformers.recognise.hypotheses import Hypothesis
from omni_transformers.recognise.live_buffer import PIECE
from omni_transformers.recognise.live_sound import LiveSound

STEP = 1.0
"""Seconds of new sound between two hypotheses, where the option ``live_step`` says nothing."""

WINDOW = 30.0
"""Seconds of the longest window, where the model reads longer ones."""

LIVE_WINDOW = "live_window"
"""In the metadata of a window's request: if it is a ``draft``, which later hypotheses correct, and what is ``said`` at its beginning."""

PROMPT = 200
"""Characters of the final text that a window follows."""

State = TypeVar("State")
_OF_WHOLE = ("diarize", "logprobs")
"""Parameters that have no effect on sound that is still coming."""

_TIMES = ("none", "segment", "word")


@frozen
class Form:
    """The form of a recogniser's windows.

    Attributes:
        rate: of its sound, in Hz.
        group: of its request parameters, by name.
        longest: seconds of the longest sound; ``None``: it may go on for ever.
        seconds: of its longest window.
        step: seconds of new sound between two hypotheses.
        times: the finest times that it tells of a part of a window.
        is_timed: it tells them at no cost; otherwise only a long window is asked for them.
        follows: its ``prompt`` is the text before.
    """

    rate: int
    group: str
    longest: float | None
    seconds: float = WINDOW
    step: float = STEP
    times: str = "none"
    is_timed: bool = False
    follows: bool = False


@define
class _Sound:
    """A request whose sound is still coming.

    Attributes:
        payload: of its beginning.
        window: that is written down; ``None``: none is, or it waits for its turn.
        is_asked: one is written down, or waits for its turn.
        is_held: its sender waits: there is sound for more than a window.
        ended: all of it has come.
        language: that was heard.
        cut: the notice of the last hypothesis, if a limit has cut it.
    """

    payload: StagePayload
    sound: LiveSound
    agreement: Agreement
    window: Window | None = None
    is_asked: bool = False
    is_held: bool = False
    ended: bool = False
    language: str | None = None
    usage: dict[str, int] = field(factory=dict)
    cut: str | None = None
    notices: list[str] = field(factory=list)

    def end_window(self) -> None:
        """Keep the notice of the last hypothesis, whose text is final."""
        if self.cut is not None:
            self.notices.append(self.cut)
        self.cut = None


class LiveWindows(StepScheduler[State]):
    """A recogniser's scheduler that also takes sound chunk by chunk: a request without messages is one.

    Args:
        form: of the windows.

    Attributes:
        behind: seconds of sound after the place of a hypothesis that leave it out if a later one is due; infinity: none is left out.
    """

    def __init__(self, *args: Any, form: Form, **given: Any) -> None:
        super().__init__(*args, **given)
        self.behind = 0.0
        self._form = form
        self._sounds: dict[str, _Sound] = {}

    def receive(self, message: IncomingMessage) -> None:
        live = self._sounds.get(message.request_id)
        if message.type == "new_request" and message.data.request.is_streamed:
            self._sounds[message.request_id] = self._opened(message.data)
        elif message.type == "new_request":
            super().receive(message)
        elif live is not None and message.type == "stream_chunk":
            live.agreement.hear(live.sound.add(message.data))
            self._go_on(message.request_id, live)
        elif live is not None:
            live.agreement.hear(live.sound.finish())
            live.agreement.end()
            live.ended = True
            self._go_on(message.request_id, live)

    def put_out(self, message: OutgoingMessage) -> None:
        live = self._sounds.get(message.request_id)
        if live is None or message.type == "error":
            self._sounds.pop(message.request_id, None)
            super().put_out(message)
        elif message.type == "result":
            self._heard(message.request_id, live, message.data)

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        self._sounds.pop(request_id, None)

    def statistics(self) -> dict[str, float]:
        """Return counters; ``live`` is the number of sounds that are still coming."""
        return {**super().statistics(), "live": float(len(self._sounds))}

    def _opened(self, payload: StagePayload) -> _Sound:
        form = self._form
        piece = round(PIECE * form.rate)
        agreement = Agreement(
            form.rate,
            max(1, round(form.step / PIECE)) * piece,
            round(min(form.seconds, WINDOW) * form.rate),
            self.behind * form.rate,
            str(self._asked(payload).get("timestamps") or "none").casefold(),
        )
        return _Sound(payload, LiveSound(form.rate, form.longest), agreement)

    def _asked(self, payload: StagePayload) -> dict[str, Any]:
        found: dict[str, Any] = payload.request.params.get(self._form.group) or {}
        return found

    def _go_on(self, request_id: str, live: _Sound) -> None:
        """Ask for the window that is due, or end a request whose sound has ended."""
        if live.is_held != live.agreement.is_full:
            live.is_held = live.agreement.is_full
            self.hold_input(request_id, live.is_held)
        if live.is_asked:
            return
        if live.agreement.due() is not None:
            live.is_asked = True
            self.admit(request_id, lambda: self._windowed(live))
        elif live.ended:
            told = live.agreement.finish()
            del self._sounds[request_id]
            if told is not None:
                self.put_out(OutgoingMessage(request_id, "stream", told))
            self.put_out(OutgoingMessage(request_id, "result", self._transcript(live)))

    def _windowed(self, live: _Sound) -> StagePayload:
        """Return a request for the window that is due, of the newest sound."""
        form, agreement = self._form, live.agreement
        window = live.window = agreement.due()
        assert window is not None
        asked = self._asked(live.payload)
        for name in _OF_WHOLE:
            if asked.get(name):
                raise InvalidRequestError(
                    f"params.{form.group}.{name}: told of whole recordings only; this sound is still coming"
                )
        given = {"timestamps": agreement.times} if agreement.times != "none" else {}
        if form.is_timed or window.is_long:
            given["timestamps"] = max(agreement.times, form.times, key=_TIMES.index)
        if form.follows and agreement.before:
            before = agreement.before[-PROMPT:]
            before = before if before == agreement.before else before.partition(" ")[2] or before  # whole words
            given["prompt"] = f"{asked.get('prompt') or ''} {before}".strip()
        if live.language is not None:
            given["language"] = live.language
        part = {"type": "audio", "samples": agreement.samples(window), "sample_rate": form.rate}
        request = evolve(
            live.payload.request,
            metadata={
                **live.payload.request.metadata,
                LIVE_WINDOW: {"draft": not window.closes, "said": agreement.said},
            },
            inputs={"messages": [{"role": "user", "content": [part]}]},
            params={**live.payload.request.params, form.group: {**asked, **given}},
        )
        return evolve(live.payload, request=request)

    def _heard(self, request_id: str, live: _Sound, written: Transcript) -> None:
        """Take what was written of a window."""
        window, live.window, live.is_asked = live.window, None, False
        assert window is not None
        begin, rate = window.begin / self._form.rate, self._form.rate
        told = live.agreement.take(window, Hypothesis.of(written, begin))
        for name, count in written.usage.items():
            live.usage[name] = live.usage.get(name, 0) + count
        if live.agreement.text and live.language is None:
            live.language = written.language
        if told is not None:
            super().put_out(OutgoingMessage(request_id, "stream", told))
        live.cut = None
        if written.finish_reason == "length":
            end = window.end / rate
            live.cut = f"the text from {begin:.1f} to {end:.1f} s was cut by the model's limit on tokens"
        if window.closes:
            live.end_window()
        self._go_on(request_id, live)

    def _transcript(self, live: _Sound) -> Transcript:
        live.end_window()
        agreement, language = live.agreement, live.language or self._asked(live.payload).get("language")
        return Transcript(
            agreement.text,
            language,
            agreement.segments,
            agreement.words,
            agreement.heard / self._form.rate,
            "length" if live.notices else "stop",
            live.usage,
            live.notices,
        )


class LiveInterleaved(LiveWindows[Line], Interleaved):
    """A recogniser that writes by a generator function, with the arguments of :class:`Interleaved` and a ``form``."""
