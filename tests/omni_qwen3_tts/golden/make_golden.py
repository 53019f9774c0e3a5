"""Writes what the reference package says of tiny checkpoints, beside this file.

Needs ``qwen-tts`` 0.1.1 in an environment of its own, which ``nox -s "references(qwen3_tts)"`` makes: it pins transformers 4.57.3.
"""

from __future__ import annotations

import gzip
import importlib
import json
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModel, MimiModel  # noqa: F401 - they look for packages before stand-ins are there

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
from qwen3_tts_cases import (
    DECODED,
    DRAWN,
    DRAWS,
    GREEDY,
    SHAPES,
    Case,
    cases_of,
    codes_to_decode,
    recording,
)
from qwen3_tts_released import CODEC, RELEASED, released

from omni_testing.tiny.qwen3_tts import write_tiny_checkpoint


def load(folder: str) -> Any:
    """Return the reference's model. Packages that only the 25 Hz codec calls are stood in for."""
    for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "onnxruntime", "sox"):
        try:
            importlib.import_module(name)
        except ImportError:
            module = types.ModuleType(name)
            module.__path__ = []  # type: ignore[attr-defined]
            sys.modules[name] = module
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, module)
    from qwen_tts import Qwen3TTSModel

    return Qwen3TTSModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def spoken(model: Any, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and the sound of a request, greedy."""
    kept: list[torch.Tensor] = []
    generate = model.model.generate

    def keeping(*args: Any, **kwargs: Any) -> Any:
        found = generate(*args, **kwargs)
        kept.append(found[0][0])
        return found

    model.model.generate = keeping
    settings = {**GREEDY, "non_streaming_mode": not case.dual_track, "language": case.language}
    if case.kind == "base":
        wavs, _ = model.generate_voice_clone(
            case.text, ref_audio=(recording(case.recording), 24_000), ref_text=case.words,
            x_vector_only_mode=case.words is None, **settings,
        )  # fmt: skip
    elif case.kind == "voice_design":
        wavs, _ = model.generate_voice_design(case.text, case.style, **settings)
    else:
        wavs, _ = model.generate_custom_voice(case.text, case.speaker, instruct=case.style or None, **settings)
    model.model.generate = generate
    # It cuts the recording off by a product of floats, which may be one sample less than whole frames.
    extra = len(wavs[0]) % model.model.speech_tokenizer.get_decode_upsample_rate()
    return kept[0].numpy(), wavs[0][extra:]


def drawn(model: Any) -> np.ndarray:
    """Return how often the reference draws each code of a first frame: ``[2, codes]``, of the first two groups."""
    case, kept = cases_of("a")[1], []
    generate = model.model.generate

    def keeping(*args: Any, **kwargs: Any) -> Any:
        kept.extend(each[0] for each in generate(*args, **kwargs)[0])
        return [each[None] for each in kept], None

    model.model.generate, model.model.speech_tokenizer.decode = keeping, lambda codes: ([], 24_000)
    torch.manual_seed(0)
    model.generate_custom_voice(
        [case.text] * DRAWS, case.speaker, case.language, non_streaming_mode=False, **DRAWN, max_new_tokens=2
    )
    codes = torch.stack(kept)
    return np.stack([codes[:, group].bincount(minlength=32).numpy() for group in range(2)])


def names() -> dict[str, dict[str, list[int]]]:
    """Return the tensors of the released checkpoints, by size and kind, and of their codec: its networks' at the released dimensions."""
    from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration

    found = {}
    with torch.device("meta"):
        for size, kind in RELEASED:
            found[f"{size}/{kind}"] = Qwen3TTSForConditionalGeneration(
                Qwen3TTSConfig(**released(size, kind))
            ).state_dict()
        found["codec"] = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**CODEC)).state_dict()
    return {part: {name: list(each.shape) for name, each in tensors.items()} for part, tensors in found.items()}


def main() -> None:
    folder, checkpoints = Path(__file__).parent, Path(tempfile.mkdtemp())
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray] = {}
    for shape in SHAPES:
        model = load(str(write_tiny_checkpoint(checkpoints / shape, shape=shape)))
        codec = model.model.speech_tokenizer
        for number, case in enumerate(cases_of(shape)):
            codes, sound = spoken(model, case)
            arrays[f"{shape}.{number}.codes"] = codes.astype(np.uint8)
            arrays[f"{shape}.{number}.sound"] = sound[:DECODED]
        if shape.startswith("base"):
            heard = recording(1)
            arrays[f"{shape}.embedding"] = model.model.extract_speaker_embedding(heard, 24_000).numpy()
            arrays[f"{shape}.encoded"] = codec.encode(heard, 24_000).audio_codes[0].numpy().astype(np.uint8)
        frames = codes_to_decode(model.model.talker.config.num_code_groups)
        with torch.inference_mode():
            wave = codec.model.decoder(torch.from_numpy(frames.T)[None])[0, 0]
        arrays[f"{shape}.decoded"] = wave[-DECODED:].numpy()
        if shape == "a":
            arrays["drawn"] = drawn(model)
    with gzip.GzipFile(folder / "released_names.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(names(), sort_keys=True).encode())
    np.savez_compressed(folder / "golden.npz", **arrays)
    (folder / "made_with.json").write_text(
        json.dumps({"qwen-tts": "0.1.1", "transformers": transformers.__version__, "torch": torch.__version__}) + "\n"
    )
    shutil.rmtree(checkpoints)


if __name__ == "__main__":
    main()
