"""The decode stage: token ids to text, piece by piece, in whole characters, up to the request's first stop string.

It needs the ``tokenizers`` library, which model distributions depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NotRequired, TypedDict

from attrs import define, field
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from omni_core.api import OmniRequest, StagePayload, StreamingScheduler, TextChunk, TextResult
from omni_torch.sampling.logprobs import TokenLogprobs
from omni_torch.sampling.stop_strings import StopStrings


class Written(TypedDict):
    """The payload at the end of a reply, whose ids have come as chunks, ``list[int]``. The metadata of each may have ``begun``, the text
    before them that is in the prompt, and ``logprobs`` of each.
    """

    token_ids: list[int]  # generated ids, the stop id included
    finish_reason: str
    prompt_tokens: int
    prompt_audio_tokens: NotRequired[int]  # those that stand for sound
    notices: list[str]


@define(eq=False)
class _Text:
    """The part of a reply that was detokenized so far; ``sent`` characters of it were streamed.

    ``begun``: what the reply was made to begin with, which is in the prompt: the beginning of a call.
    """

    request_id: str
    text: StopStrings
    begun: str = ""
    stream: DecodeStream = field(factory=lambda: DecodeStream(skip_special_tokens=True))
    logprobs: TokenLogprobs | None = None
    sent: int = 0
    result: Written | None = None


class Detokenizer(StreamingScheduler[_Text]):
    """Streams :class:`TextChunk`; concatenated, they equal the :class:`TextResult`'s text exactly.

    Characters that may be the beginning of a stop string are held back until they are known not to be one.

    Args:
        group: the group of a request's parameters that has ``stop``.
    """

    def __init__(self, tokenizer: Tokenizer, group: str) -> None:
        super().__init__()
        self._tokenizer, self._group = tokenizer, group

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Text:
        params = request.params.get(self._group, {}) if request is not None else {}
        return _Text(request_id, StopStrings(params.get("stop") or ()))

    def on_payload(self, state: _Text, payload: StagePayload) -> None:
        state.result = payload.data

    def on_chunk(self, state: _Text, chunk: list[int], metadata: dict[str, Any] | None) -> None:
        if metadata and metadata.get("begun") and not state.begun:
            state.begun = metadata["begun"]
            self.emit(state.request_id, TextChunk(state.begun))
        for entry in (metadata or {}).get("logprobs", ()):
            state.logprobs = state.logprobs or TokenLogprobs(self._tokenizer)
            state.logprobs.add(entry, len(state.text.text))
        state.text.feed("".join(text for token in chunk if (text := state.stream.step(self._tokenizer, token))))
        self._send(state, state.text.safe)

    def finish(self, request_id: str, state: _Text) -> TextResult:
        assert state.result is not None
        ids = state.result["token_ids"]
        # A character that is still incomplete appears only in the text of all ids, as a replacement mark.
        whole = self._tokenizer.decode(ids, skip_special_tokens=True)
        state.text.feed(whole[len(state.text.text) :])
        end = len(whole) if state.text.end is None else state.text.end
        self._send(state, end)
        usage = {"prompt_tokens": state.result["prompt_tokens"], "completion_tokens": len(ids)}
        if heard := state.result.get("prompt_audio_tokens"):
            usage["prompt_audio_tokens"] = heard
        logprobs = [] if state.logprobs is None else state.logprobs.told
        text, reason = state.begun + whole[:end], state.result["finish_reason"]
        return TextResult(text, ids, reason, usage, state.result["notices"], logprobs=logprobs)

    def _send(self, state: _Text, end: int) -> None:
        if end > state.sent:
            logprobs = [] if state.logprobs is None else state.logprobs.until(end)
            self.emit(state.request_id, TextChunk(state.text.text[state.sent : end], logprobs))
            state.sent = end


def text_decoder(tokenizer: Tokenizer) -> Callable[[int], str | None]:
    """Return a function from one token id of a reply after the other to the text that each completes."""
    return partial(DecodeStream(skip_special_tokens=True).step, tokenizer)
