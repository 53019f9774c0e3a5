"""The offer of a model that speaks, and its stage. Light: imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen

from omni_core.api import SEED, SPEECH, VOICE, WORD_TIMES, Interface, Parameter, ParameterGroup, StageConfig
from omni_transformers.align.declaration import aligner_stage
from omni_transformers.checkpoints import Source
from omni_transformers.options import Given

GROUP = "speech"
"""The group of parameters, and the name of the stage."""

MOST_CHARACTERS = 10_000

PARTS = {
    "SpeechT5ForTextToSpeech": ("vocoder", "microsoft/speecht5_hifigan"),
    "FastSpeech2ConformerModel": ("vocoder", "espnet/fastspeech2_conformer_hifigan"),
    "DiaForConditionalGeneration": ("audio_tokenizer", "descript/dac_44khz"),
    "HiggsAudioV2ForConditionalGeneration": ("audio_tokenizer", "eustlb/higgs-audio-v2-tokenizer"),
    "PocketTTSForConditionalGeneration": ("audio_tokenizer", "eustlb/pocket-tts-audio-tokenizer"),
    "GradiumPhononTTSForConditionalGeneration": ("audio_tokenizer", "eustlb/pocket-tts-audio-tokenizer"),
}
"""Vocoders and codecs that are checkpoints of their own, by architecture: the folder in the model's, and the hub id of the released one."""

FASTSPEECH2_RATE = 22_050
"""Hz. Its configs do not say it."""


@frozen
class Offer:
    """The offer of a checkpoint that speaks.

    Attributes:
        sample_rate: in Hz.
        parameters: of a request, beside the seed.
        voices: names.
        voices_from: where they come from, if the checkpoint's files hold them: of a hub id that was not downloaded yet, none are known.
        default: the first is the default; false: without a name, the model chooses a voice.
        reference: it speaks with the voice of a recording.
        reference_text: that needs the words that are said in it.
        most_characters: of one request.
        word_times: it knows when its words are heard.
    """

    sample_rate: int
    parameters: list[Parameter] = field(factory=list)
    voices: list[str] = field(factory=list)
    voices_from: str | None = None
    default: bool = True
    reference: bool = False
    reference_text: bool = False
    most_characters: int = MOST_CHARACTERS
    word_times: bool = False


@frozen
class Speaks:
    """A model that speaks, in one stage.

    Attributes:
        speaker: reference of a :class:`omni_transformers.speak.speaker.Speaker`, which is loaded in the stage's process.
        offer: reads what a checkpoint offers from its config files.
        shares: its speaker has a ``loop``, whose calls those of several requests share.
    """

    speaker: str
    offer: Callable[[Source], Offer]
    shares: bool = False

    def interface(self, source: Source) -> Interface:
        """Return what a checkpoint offers."""
        offer = self.offer(source)
        seed = Parameter(SEED, "integer", "sampling seed; random by default", minimum=0, maximum=2**63 - 1)
        metadata = []
        if offer.voices or offer.voices_from:
            default = offer.voices[0] if offer.voices and offer.default else None
            metadata = [Parameter(VOICE, "string", "the voice", default, choices=offer.voices)]
        return Interface(
            roles={SPEECH: GROUP},
            inputs=["text", "reference"] if offer.reference else ["text"],
            input_streams=["text"],
            outputs=["audio"],
            groups=[ParameterGroup(GROUP, SPEECH, "how it is spoken", [*offer.parameters, seed])],
            metadata=metadata,
            limits={"max_characters": offer.most_characters},
            voices=offer.voices,
            voices_from=None if offer.voices else offer.voices_from,
            sample_rate=offer.sample_rate,
            reference_text=offer.reference_text,
            word_times=offer.word_times or source.given.aligner is not None,
            params=[] if source.given.aligner is None else [WORD_TIMES],
        )

    def stages(self, source: Source, given: Given) -> list[StageConfig]:
        """Return the stage, and the one that aligns."""
        most = self.offer(source).most_characters
        arguments: dict[str, Any] = {"speaker": self.speaker, "max_characters": most, **given.network}
        if self.shares:
            arguments["backend"] = given.backend
        for name in ("vocoder", "voices"):
            if getattr(given, name) is not None:
                arguments[name] = getattr(given, name)
        factory = "omni_transformers.speak.stage:create_speaker"
        if given.aligner is None:
            return [given.stage(GROUP, factory=factory, factory_args=arguments, terminal=True)]
        arguments["tells_parts"] = True
        after = aligner_stage(given, given.aligner)
        said = given.stage(GROUP, factory=factory, factory_args=arguments, next=after.name, stream_to=[after.name])
        return [said, after]
