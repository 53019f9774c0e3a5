"""The models of this kind that write recordings down and answer no questions. Imports no torch."""

from __future__ import annotations

from attrs import frozen

from omni_transformers.architectures import Architecture


@frozen
class Recogniser:
    """A recogniser: what it takes and tells.

    Attributes:
        parameters: of :func:`transcription_parameters`, those that its prompt takes.
        languages: the codes that it can be told; empty: any that its processor knows.
        segments: its text holds times and speakers.
        mark, marks: which sign a segment has, and how often, of a text whose segments can be read before its end.
        marker: what ends the part of its text that names the language.
    """

    parameters: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    segments: bool = False
    mark: str = ""
    marks: int = 0
    marker: str = ""


_QWEN3 = "ar yue zh cs da nl en fil fi fr de el hi hu id it ja ko mk ms fa pl pt ro ru es sv th tr vi"

RECOGNISERS = {
    "FunAsrNanoForConditionalGeneration": Recogniser(("language", "prompt"), languages=("zh", "en", "ja")),
    "GlmAsrForConditionalGeneration": Recogniser(("prompt",)),
    "MossTranscribeDiarizeForConditionalGeneration": Recogniser(("prompt",), segments=True, mark="]", marks=3),
    "Nemotron3_5TranscribeForConditionalGeneration": Recogniser(),
    "Qwen3ASRForConditionalGeneration": Recogniser(("language", "prompt"), tuple(_QWEN3.split()), marker="<asr_text>"),
    "VibeVoiceAsrForConditionalGeneration": Recogniser(("prompt",), segments=True),
}
"""By architecture."""


def reads_windows(architecture: Architecture) -> bool:
    """Return whether sound that is still coming is written down by windows that overlap."""
    if architecture.kind == "words":
        return architecture.name in RECOGNISERS and not RECOGNISERS[architecture.name].segments
    return architecture.kind == "recognise" and architecture.form != "live"


def tells_speakers_by_another(architecture: Architecture) -> bool:
    """Return whether a diarizer beside it may tell the speakers of a recogniser: it hears whole recordings, and tells none."""
    if architecture.kind == "words":
        return architecture.name in RECOGNISERS and not RECOGNISERS[architecture.name].segments
    return architecture.kind == "recognise" and architecture.form != "live"


TRANSCRIBE = "Transcribe the audio into text."
"""The instruction to a model that answers."""

TRANSLATE = "Translate the speech into English. Write the translation and nothing else."
"""The instruction to one that answers in another language than it hears."""

TRANSCRIBE_BY = {
    "AudioFlamingo3ForConditionalGeneration": "Transcribe the input speech.",
    "GraniteSpeechForConditionalGeneration": "can you transcribe the speech into a written format?",
    "GraniteSpeechPlusForConditionalGeneration": "can you transcribe the speech into a written format?",
}
"""The words by which a model learned to do it, where they are others."""
