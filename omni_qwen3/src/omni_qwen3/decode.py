"""The decode stage: token ids to text, piece by piece, in whole characters, up to the request's first stop string."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from attrs import define, field
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import TextChunk, TextResult
from omni_core.scheduling.streaming import StreamingScheduler
from omni_qwen3.config import read_config
from omni_qwen3.payloads import ThinkerResult, thinker_params
from omni_qwen3.tokenizer import load_tokenizer, markers
from omni_torch.sampling.stop_strings import StopStrings


@define(eq=False)
class _Text:
    """The part of a reply that was detokenized so far; ``sent`` characters of it were streamed.

    ``begun``: what the reply was made to begin with, which is in the prompt: the beginning of a call.
    """

    request_id: str
    text: StopStrings
    begun: str = ""
    stream: DecodeStream = field(factory=lambda: DecodeStream(skip_special_tokens=True))
    sent: int = 0
    result: ThinkerResult | None = None


class Detokenizer(StreamingScheduler[_Text]):
    """Streams :class:`TextChunk`; concatenated, they equal the :class:`TextResult`'s text exactly.

    Characters that may be the beginning of a stop string are held back until they are known not to be one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Text:
        params = thinker_params(request.params) if request is not None else {}
        return _Text(request_id, StopStrings(params.get("stop") or ()))

    def on_payload(self, state: _Text, payload: StagePayload) -> None:
        state.result = payload.data

    def on_chunk(self, state: _Text, chunk: list[int], metadata: dict[str, Any] | None) -> None:
        if metadata and not state.begun:
            state.begun = metadata["begun"]
            self.emit(state.request_id, TextChunk(state.begun))
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
        return TextResult(state.begun + whole[:end], ids, state.result["finish_reason"], usage, state.result["notices"])

    def _send(self, state: _Text, end: int) -> None:
        if end > state.sent:
            self.emit(state.request_id, TextChunk(state.text.text[state.sent : end]))
            state.sent = end


@cache
def _tokenizer(model_path: str) -> Tokenizer:
    """Return the checkpoint's tokenizer, read once per process."""
    return load_tokenizer(model_path, markers(read_config(model_path)))


def text_decoder(model_path: str) -> Callable[[int], str | None]:
    """Return a function from one token id of a reply after the other to the text that each completes."""
    return partial(DecodeStream(skip_special_tokens=True).step, _tokenizer(model_path))


def create_decode(model_path: str) -> Detokenizer:
    """Make the decode stage."""
    return Detokenizer(_tokenizer(model_path))
