"""Replies: text, speech and usage, keyed by what they are and not by the stage that made them."""

from __future__ import annotations

import array
import base64
import io
import sys
import threading
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from omni_core.coordinator import StreamEvent
from omni_core.errors import OmniError
from omni_core.interface import Interface
from omni_core.protocol.outputs import (
    AudioChunk,
    AudioResult,
    ImageChunk,
    ImageResult,
    TextChunk,
    TextResult,
    Transcript,
    TranscriptChunk,
    Word,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Samples = npt.NDArray[np.float32]


@frozen(eq=False, repr=False)
class Audio:
    """Mono speech: float32 ``samples`` of shape ``[n]`` in [-1, 1] at ``sample_rate`` Hz. Without samples it is false. A notebook
    shows a player.

    ``words``: those that are said, with their times in seconds from the beginning of the whole speech; empty where the model knows none.
    """

    samples: Samples
    sample_rate: int
    words: list[Word] = field(factory=list)

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.seconds:.2f} s at {self.sample_rate} Hz>"

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return len(self.samples) / self.sample_rate if self.sample_rate else 0.0

    def wav(self) -> bytes:
        """Return the content of a WAV file, 16-bit PCM.

        Raises:
            OmniError: there is no sound.
        """
        if not len(self):
            raise OmniError(
                "there is no sound to write: the reply has no speech (see its notices and the request's modalities)"
            )
        stream = io.BytesIO()
        with wave.open(stream, "wb") as file:
            file.setparams((1, 2, self.sample_rate, 0, "NONE", ""))
            file.writeframes(pcm16(self.samples))
        return stream.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write a WAV file, 16-bit PCM; return its path. Raises as :meth:`wav`, and OSError."""
        path = Path(path)
        if path.suffix.lower() not in ("", ".wav", ".wave"):
            raise OmniError(
                f"{path}: save() writes WAV; name it .wav, or encode `samples` with a library such as soundfile"
            )
        path.write_bytes(self.wav())
        return path

    def _repr_html_(self) -> str:
        if not len(self):
            return repr(self)
        data = base64.b64encode(self.wav()).decode()
        return f'<audio controls src="data:audio/wav;base64,{data}"></audio>'


@frozen(eq=False, repr=False)
class AudioPiece(Audio):
    """A piece of speech as it was made. ``start``: seconds from the beginning of the whole speech, of a pipeline that tells them."""

    start: float | None = None


@frozen
class TextPiece:
    """A piece of text as it was made."""

    text: str

    def __str__(self) -> str:
        return self.text


@frozen
class TranscriptPiece:
    """A piece of a transcript: ``text`` is final, ``tentative`` may follow and is replaced by the next piece."""

    text: str
    tentative: str = ""

    def __str__(self) -> str:
        return self.text


Piece = TextPiece | AudioPiece | TranscriptPiece


@frozen
class Usage:
    """Tokens of a request. ``details`` holds whatever else the pipeline counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    details: dict[str, int] = field(factory=dict)

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


@frozen(eq=False)
class Reply:
    """A whole reply.

    Attributes:
        text: empty if the pipeline answers without text; of one that only writes recordings down, the transcript's.
        audio: the speech; false if there is none.
        usage: the tokens, as far as the pipeline counts them.
        finish_reason: ``stop`` or ``length``.
        notices: remarks of the pipeline about this request.
        request_id: the name of the request in logs and traces.
        outputs: the results of the terminal stages: ``text``, ``audio``, ``image``, ``video``, ``transcript``, and others by the role of
            their stage, else by its name.
    """

    text: str
    audio: Audio
    usage: Usage
    finish_reason: str
    notices: list[str]
    request_id: str
    outputs: dict[str, Any]

    def __str__(self) -> str:
        return self.text

    @property
    def reasoning(self) -> str:
        """The thoughts of the model before its answer; empty if it tells none."""
        return getattr(self.outputs.get("text"), "reasoning", "")

    @property
    def transcript(self) -> Transcript | None:
        """The transcript of the recording, from a pipeline that writes it down; ``None``: from another."""
        found = self.outputs.get("transcript")
        return found if isinstance(found, Transcript) else None


@define
class Collector:
    """Makes the pieces and the reply of one request from the results of its terminal stages."""

    request_id: str
    interface: Interface | None
    pieces: list[Piece] = field(factory=list)
    results: dict[str, Any] = field(factory=dict)

    def add(self, event: StreamEvent) -> list[Piece]:
        """Take one result; return the pieces that it adds. Of a stage that streams nothing, the whole result is one piece."""
        if event.final:
            self.results[event.stage] = event.data
        piece = _piece(event.data)
        if piece is None or (event.final and self._of(type(piece))):
            return []
        self.pieces.append(piece)
        return [piece]

    def reply(self) -> Reply:
        """Return the whole reply."""
        roles = {stage: role for role, stage in (self.interface.roles if self.interface else {}).items()}
        outputs: dict[str, Any] = {}
        for stage, data in self.results.items():
            key = _kind(data) or roles.get(stage, stage)
            outputs[stage if key in outputs else key] = data
        text, audio = outputs.get("text"), outputs.get("audio")
        if text is None and not self._of(TextPiece):  # a text beside a transcript answers what was said
            text = outputs.get("transcript")
        usage = dict(text.usage) if isinstance(text, TextResult | Transcript) else {}
        return Reply(
            text="".join(map(str, self._of(TextPiece))) if text is None else getattr(text, "text", text),
            audio=self._audio(audio),
            usage=Usage(usage.pop("prompt_tokens", 0), usage.pop("completion_tokens", 0), usage),
            finish_reason=getattr(text, "finish_reason", "stop"),
            notices=[line for each in outputs.values() for line in getattr(each, "notices", [])],
            request_id=self.request_id,
            outputs=outputs,
        )

    def _of(self, kind: type) -> list[Any]:
        return [each for each in self.pieces if type(each) is kind]

    def _audio(self, result: Any) -> Audio:
        pieces = self._of(AudioPiece) if result is None else [result]
        if not pieces:
            return Audio(_array([]), (self.interface and self.interface.sample_rate) or 0)
        samples = [_array(each.samples) for each in pieces]
        if len(samples) > 1:
            import numpy as np

            samples = [np.concatenate(samples)]
        return Audio(samples[0], pieces[0].sample_rate, [word for each in pieces for word in each.words])


def _kind(data: Any) -> str | None:
    if isinstance(data, TextChunk | TextResult | str):
        return "text"
    if isinstance(data, TranscriptChunk | Transcript):
        return "transcript"
    if isinstance(data, ImageChunk | ImageResult):
        return "video" if getattr(data, "frames_per_second", 0) else "image"
    return "audio" if isinstance(data, AudioChunk | AudioResult) else None


def _piece(data: Any) -> Piece | None:
    kind = _kind(data)
    if kind == "text":
        text = getattr(data, "text", data)
        return TextPiece(text) if text else None
    if kind == "transcript":
        return TranscriptPiece(data.text, getattr(data, "tentative", ""))
    if kind != "audio" or not (len(data.samples) or data.words):
        return None
    return AudioPiece(_array(data.samples), data.sample_rate, data.words, getattr(data, "start", None))


def import_numpy_soon() -> None:
    """Begin to import NumPy beside the event loop, which the first sound would otherwise keep waiting."""
    threading.Thread(target=_array, args=([],), name="import-numpy", daemon=True).start()


def _array(values: Any) -> Any:
    """Return float32 samples as a NumPy array. Where NumPy is not installed, a list stays one."""
    try:
        import numpy as np
    except ImportError:
        return values
    return np.asarray(values, dtype=np.float32)


def pcm16(samples: Any) -> bytes:
    """Return float samples in [-1, 1] as 16-bit little-endian integers. NumPy arrays take a shorter way than lists."""
    if hasattr(samples, "astype"):
        scaled: bytes = (samples.clip(-1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()
        return scaled
    values = samples.tolist() if hasattr(samples, "tolist") else samples
    pcm = array.array("h", (round(max(-1.0, min(1.0, value)) * 32767) for value in values))
    if sys.byteorder == "big":
        pcm.byteswap()
    return pcm.tobytes()
