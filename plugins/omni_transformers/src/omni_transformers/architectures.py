"""The architectures of transformers that have a pipeline here. Read from a generated table: imports no transformers.

``python -m omni_transformers.architectures`` writes the table anew from the installed transformers. The kind of an architecture is that of
transformers' own auto classes, because the modalities that model classes declare are wrong for most that speak.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from attrs import asdict, frozen

Kind = Literal["speak", "recognise", "words"]
"""The task of an architecture: make sound of text; write recordings down and nothing else; write text from any input."""

KINDS: dict[Kind, str] = {
    "speak": "/v1/audio/speech",
    "recognise": "/v1/audio/transcriptions",
    "words": "/v1/chat/completions",
}
"""The endpoint of each kind."""

FORMS = {
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES": ("speak", "waveform"),
    "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES": ("speak", "spectrogram"),
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES": ("words", "decoder"),
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES": ("recognise", "seq2seq"),
    "MODEL_FOR_RNNT_MAPPING_NAMES": ("recognise", "transducer"),
    "MODEL_FOR_TDT_MAPPING_NAMES": ("recognise", "transducer"),
    "MODEL_FOR_CTC_MAPPING_NAMES": ("recognise", "ctc"),
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": ("words", "decoder"),
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": ("words", "seq2seq"),
}
"""Kind and form by the auto table of transformers; an architecture in several has that of the first."""

_PARTS = {
    "image_processor": "image",
    "feature_extractor": "audio",
    "audio_processor": "audio",
    "video_processor": "video",
}
"""The kind of media that each part of a processor takes."""

_NOT_TAKEN = {"NemotronH_Omni_Reasoning_V3": {"video"}}  # its generate() fails for them
"""Kinds of media that a processor takes and the model does not."""

_FIRST = {
    "AudioFlamingo3ForConditionalGeneration": ("words", "decoder"),
    "DiaForConditionalGeneration": ("speak", "waveform"),
    "KyutaiSpeechToTextForConditionalGeneration": ("recognise", "live"),
    "MusicFlamingoForConditionalGeneration": ("words", "decoder"),
    "Nemotron3_5AsrForRNNT": ("recognise", "live"),
    "NemotronAsrStreamingForRNNT": ("recognise", "live"),
    "Pop2PianoForConditionalGeneration": ("speak", "waveform"),
    "VoxtralRealtimeForConditionalGeneration": ("recognise", "live"),
}
"""Architectures that transformers lists as something else, or that hear sound as it comes."""

REFUSED = {
    "DiffusionGemmaForBlockDiffusion": "it writes blocks of tokens, not one after the other",
    "EvollaForProteinText2Text": "it takes proteins",
    "Gemma4AssistantForCausalLM": "it drafts for another model",
    "Gemma4UnifiedAssistantForCausalLM": "it drafts for another model",
    "MusicgenForCausalLM": "it is a part of a model that makes music",
    "MusicgenMelodyForCausalLM": "it is a part of a model that makes music",
    "PI0ForConditionalGeneration": "it moves a robot",
    "UdopForConditionalGeneration": "it takes words with their places on a page",
    "WhisperForCausalLM": "it is a part of a model that listens",
}
"""Architectures of transformers' auto tables that have no pipeline here, and why."""

_TABLE = Path(__file__).with_name("architectures.json")


@frozen
class Architecture:
    """A model class of transformers.

    Attributes:
        name: of the class.
        model_type: of its config.
        kind: what it does.
        form: how: ``waveform`` or ``spectrogram``; ``seq2seq``, ``transducer``, ``ctc`` or ``live``; ``decoder`` or ``seq2seq``.
        inputs: kinds of message parts that it takes.
    """

    name: str
    model_type: str
    kind: Kind
    form: str
    inputs: list[str]


@cache
def table() -> dict[str, Architecture]:
    """Return the architectures by the names of their classes."""
    rows = json.loads(_TABLE.read_text(encoding="utf-8"))
    return {name: Architecture(name, *each) for name, each in rows["architectures"].items()}


def made_from() -> str:
    """Return the version of transformers that the table was made from."""
    version: str = json.loads(_TABLE.read_text(encoding="utf-8"))["transformers"]
    return version


def architecture_of(config: dict[str, Any]) -> Architecture | None:
    """Return the architecture that a checkpoint's config names, else the first of its model type."""
    named = config.get("architectures")
    for name in named if isinstance(named, list) else []:
        if isinstance(name, str) and name in table():
            return table()[name]
    of_type = (each for each in table().values() if each.model_type == config.get("model_type"))
    return next(of_type, None) if not named else None


def _found() -> Iterator[Architecture]:
    """Read the architectures from the installed transformers."""
    import transformers
    from transformers.models.auto import modeling_auto

    seen = set()
    for mapping, form in FORMS.items():
        for model_type, names in getattr(modeling_auto, mapping).items():
            for name in (names,) if isinstance(names, str) else names:
                if name in seen or not hasattr(transformers, name):
                    continue
                seen.add(name)
                kind, how = _FIRST.get(name, form)
                own = getattr(getattr(transformers, name).config_class, "model_type", "")
                model_type = own or model_type  # several types may share a class
                yield Architecture(name, model_type, kind, how, _inputs(name, model_type, kind, mapping))  # type: ignore[arg-type]


def _inputs(name: str, model_type: str, kind: str, mapping: str) -> list[str]:
    """Return what an architecture takes, by its processor; where it has none, by its class, which of those that write is mostly wrong."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    if kind == "recognise":
        return ["audio"]
    given = getattr(getattr(transformers, name), "input_modalities", "text")
    inputs = {given} if isinstance(given, str) else set(given)
    processor: Any = getattr(transformers, PROCESSOR_MAPPING_NAMES.get(model_type) or "", None)
    if hasattr(processor, "_backends"):  # a dummy: it needs a package that is not installed
        processor = None
    if kind == "words" and (mapping == "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES" or name.endswith("ForTextToText")):
        inputs = {"text"}
    elif kind == "words" and processor is not None:
        inputs = {"text"} | {_PARTS[each] for each in processor.get_attributes() if each in _PARTS}
    inputs -= _NOT_TAKEN.get(name, set())
    return [each for each in ("text", "image", "audio", "video") if each in inputs]


def write() -> None:
    """Write the table from the installed transformers."""
    from omni_transformers.stand_ins import stand_in

    stand_in()
    import transformers

    rows = {each.name: list(asdict(each).values())[1:] for each in _found()}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    version = json.dumps(transformers.__version__)
    _TABLE.write_text(f'{{\n  "transformers": {version},\n  "architectures": {{\n{lines}\n  }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    write()
