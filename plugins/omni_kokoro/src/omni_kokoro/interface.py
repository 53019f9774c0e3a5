"""The offer of the pipeline: parameters, voices, options. Imports no torch."""

from __future__ import annotations

from typing import Literal, TypedDict

from omni_core.api import SEED, SPEECH, VOICE, Interface, Parameter, ParameterGroup

GROUP = "speech"

RATE = 24_000
"""Samples a second of its sound."""

MOST = 100_000
"""Characters of a text: about two hours."""

OPENAI = {
    "alloy": ("af_alloy", "am_adam"),
    "ash": ("af_nicole",),
    "ballad": ("bm_lewis",),
    "cedar": ("am_fenrir",),
    "coral": ("bf_emma",),
    "echo": ("am_echo", "af_bella"),
    "fable": ("bm_fable", "af_sarah"),
    "marin": ("af_heart",),
    "nova": ("af_nova", "bf_isabella"),
    "onyx": ("am_onyx", "bm_george"),
    "sage": ("am_michael",),
    "shimmer": ("af_sky",),
    "verse": ("am_puck",),
}
"""OpenAI's names, and for each the voices that stand for it, the first that the checkpoint has."""

OPTIONS = {
    "weights": "the file of weights, where the folder has several: a .pth or .safetensors, or an .onnx (needs omni-kokoro[onnx])",
    "voices": "folder or file of voices in place of the checkpoint's",
    "spelling": "what pronounces words: espeak (espeak-ng, the default) or misaki (needs omni-kokoro[misaki])",
    "gpu": "the number of a GPU; by default the CPU",
    "max_batch_size": "sentences in one pass, of any requests; by default 8 on a GPU and 1 on a CPU, which gains nothing by more",
    "max_characters": "maximum length of a text, in characters",
    "processes": "'one' (default: pronunciation and sound in one process) or 'separate'",
}
"""The pipeline's options, each with the line that ``omni pipelines`` prints."""


class Options(TypedDict, total=False):
    """Options of the pipeline; :data:`OPTIONS` describes them."""

    weights: str
    voices: str
    spelling: Literal["espeak", "misaki"]
    gpu: int
    max_batch_size: int
    max_characters: int
    processes: Literal["one", "separate"]


SPEECH_PARAMETERS = ParameterGroup(
    GROUP,
    SPEECH,
    "how the text is spoken",
    [
        Parameter("speed", "number", "1 is the voice's own", 1.0, minimum=0.25, maximum=4.0),
        Parameter(
            "language",
            "string",
            "of the text, such as en-gb; by default that of the voice, by its first letter",
            aliases=["lang_code"],
        ),
        Parameter("phonemes", "boolean", "the text is phonemes of the model's vocabulary", False),
        Parameter(SEED, "integer", "of the noise in the voice; the same text sounds the same by default", 0, 0, 2**62),
    ],
)

INTERFACE = Interface(
    roles={SPEECH: "speak"},
    inputs=["text"],
    input_streams=["text"],
    outputs=["audio"],
    groups=[SPEECH_PARAMETERS],
    metadata=[Parameter(VOICE, "string", "a voice, or a blend of voices: af_heart(2)+af_bella(1)")],
    limits={"max_characters": MOST},
    voices_from="files in voices/",
    voices_open=True,
    sample_rate=RATE,
    word_times=True,
)
