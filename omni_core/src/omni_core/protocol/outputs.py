"""Results and partial results for clients, text, audio, images and transcripts, in one form for every model.

A terminal stage streams :class:`TextChunk`, :class:`ReasoningChunk`, :class:`AudioChunk`, :class:`ImageChunk` or
:class:`TranscriptChunk` and finishes with a :class:`TextResult`, an :class:`AudioResult`, an :class:`ImageResult` or a
:class:`Transcript`; any other plain data is allowed too and passes through as it is.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from attrs import field, frozen

from omni_core.protocol.registry import register


@register
@frozen
class TokenLogprob:
    """A token of a text with its log probability, by the model's own logits: before temperature, penalties and constraints.

    Attributes:
        text: of the token; a character that is only a part of one is a replacement mark.
        data: its bytes of UTF-8.
        logprob: the natural logarithm of its probability.
        token_id: in the model's vocabulary.
        top: the likeliest tokens in its place, the likeliest first, without ``top`` of their own.
    """

    text: str
    data: bytes
    logprob: float
    token_id: int
    top: list[TokenLogprob] = field(factory=list)


@register
@frozen
class TextChunk:
    """A piece of text as it was made. ``logprobs``: of tokens that end here, where they were asked for (``top_logprobs``)."""

    text: str
    logprobs: list[TokenLogprob] = field(factory=list)


@register
@frozen
class ReasoningChunk:
    """A piece of what the model thinks before it answers, which is no part of the answer's text."""

    text: str


@register
@frozen
class Word:
    """A word that is heard or said in a sound.

    Attributes:
        text: as it is written, without the spaces around it.
        start, end: seconds from the beginning of the sound.
        speaker: who says it, by any name that is the same throughout one sound. ``None``: not known.
        confidence: how sure the model is, 0 to 1. ``None``: not known.
    """

    text: str
    start: float
    end: float
    speaker: str | None = None
    confidence: float | None = None


@register
@frozen
class AudioChunk:
    """A piece of mono audio.

    Attributes:
        samples: float32 of shape ``[n]``, in [-1, 1]; none where a chunk only tells words.
        sample_rate: in Hz; that of the pipeline's interface, where it declares one.
        start: seconds from the beginning of the whole sound; of the chunks of a request, starts never fall. ``None``: it follows the one
            before.
        words: those that end in this piece, or before it and were not told yet, with the times in the whole sound at which they are
            heard; empty where the model knows none.
    """

    samples: Any
    sample_rate: int
    start: float | None = None
    words: list[Word] = field(factory=list)


@register
@frozen
class TextResult:
    """The whole text. ``token_ids`` are the generated ids; ``finish_reason`` is ``stop``, ``length`` or ``abort``. ``usage`` counts
    ``prompt_tokens``, those of them that stand for sound as ``prompt_audio_tokens``, ``completion_tokens``, and those of them
    that are ``reasoning`` as ``reasoning_tokens``. ``reasoning``: the :class:`ReasoningChunk` texts joined. ``logprobs``: those of the
    :class:`TextChunk` pieces joined.
    """

    text: str
    token_ids: list[int] = field(factory=list)
    finish_reason: str = "stop"
    usage: dict[str, int] = field(factory=dict)
    notices: list[str] = field(factory=list)
    reasoning: str = ""
    logprobs: list[TokenLogprob] = field(factory=list)


@register
@frozen
class AudioResult:
    """The whole audio: float32 ``samples`` of shape ``[n]``, ``sample_rate`` in Hz; ``codes`` are the codec frames if asked for, ``words``
    all that are said, with their times where the model knows them; those of the chunks are the first of them.
    ``usage`` may have ``completion_audio_tokens``, the frames of sound.
    """

    samples: Any
    sample_rate: int
    codes: Any = None
    notices: list[str] = field(factory=list)
    words: list[Word] = field(factory=list)
    usage: dict[str, int] = field(factory=dict)


@register
@frozen
class ImageChunk:
    """The progress of images: ``step`` of ``steps`` is done. ``pixels``: a preview as in :class:`ImageResult`, if there is one."""

    step: int
    steps: int
    pixels: Any = None


@register
@frozen
class ImageResult:
    """Images of one size, or the frames of a video: uint8 ``pixels`` of shape ``[n, height, width, 3]``, red, green, blue.

    ``frames_per_second`` is that of a video, which a reply has as ``video``; 0: the images are separate. With ``seeds``, one per image,
    they can be made again.
    """

    pixels: Any
    frames_per_second: float = 0.0
    seeds: list[int] = field(factory=list)
    notices: list[str] = field(factory=list)


@register
@frozen
class Segment:
    """A part of a transcript with its times: a sentence, a turn of a speaker, or what one window of the model holds.

    Attributes:
        text: with the spaces that it has in the transcript's text, which need not be its segments joined.
        start, end: seconds from the beginning of the recording.
        speaker: who says it, by any name that is the same throughout one recording. ``None``: not known.
        confidence: how sure the model is, 0 to 1: of a model that writes tokens, the geometric mean of their probabilities. ``None``: not
            known.
        no_speech: the probability that nobody speaks, 0 to 1. ``None``: not known.
        temperature: what its tokens were sampled with.
        token_ids: its tokens.
    """

    text: str
    start: float
    end: float
    speaker: str | None = None
    confidence: float | None = None
    no_speech: float | None = None
    temperature: float = 0.0
    token_ids: list[int] = field(factory=list)


@register
@frozen
class TranscriptChunk:
    """A piece of a transcript as it was heard.

    The transcript so far is the ``text`` of all chunks, joined, and then the ``tentative`` text of the last one. So a later chunk replaces
    the tentative text of the one before it, and nothing else: ``text`` is final. :class:`Transcript` finishes the stream; its text is the
    joined text of the chunks, its segments and words are theirs.

    Attributes:
        text: added for good; may be empty.
        tentative: what may follow, and may still change.
        segments, words: those that are complete with this chunk.
        logprobs: of the tokens of ``text``.
    """

    text: str
    tentative: str = ""
    segments: list[Segment] = field(factory=list)
    words: list[Word] = field(factory=list)
    logprobs: list[TokenLogprob] = field(factory=list)


@register
@frozen
class Transcript:
    """The whole transcript of a recording.

    Attributes:
        text: all of it.
        language: that of the recording, as an ISO 639-1 code, else as BCP 47 (``yue``, ``zh-TW``). ``None``: not known.
        segments, words: in the order of their starts; empty where the model knows no times, or none were asked for.
        duration: seconds of the recording that were heard. ``None``: not known.
        finish_reason: ``stop``, or ``length``: a limit has cut it, and the rest of the recording is not in it.
        usage, notices: as of a :class:`TextResult`.
        logprobs: of the tokens that its text was written with, those of all chunks; empty unless they were asked for.
    """

    text: str
    language: str | None = None
    segments: list[Segment] = field(factory=list)
    words: list[Word] = field(factory=list)
    duration: float | None = None
    finish_reason: str = "stop"
    usage: dict[str, int] = field(factory=dict)
    notices: list[str] = field(factory=list)
    logprobs: list[TokenLogprob] = field(factory=list)

    @property
    def speakers(self) -> list[str]:
        """The names of the speakers, in the order in which they are first heard."""
        heard = [(each.start, each.speaker) for each in self.segments] + [
            (each.start, each.speaker) for each in self.words
        ]
        return list(dict.fromkeys(speaker for _, speaker in sorted(heard, key=itemgetter(0)) if speaker is not None))
