"""Writes what the reference package says of tiny checkpoints: ``python make_golden.py CHECKPOINTS FOLDER``.

CHECKPOINTS has a folder of ``omni tiny-checkpoint qwen3-tts`` for each name of ``cases.SHAPES``. Needs ``qwen-tts`` 0.1.1 in an environment
of its own (``nox -s references`` makes it): it pins transformers 4.57.3.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModel, MimiModel  # noqa: F401 - they look for packages before stand-ins are there

sys.path.insert(0, str(Path(__file__).parent))
from cases import (
    DECODED,
    DRAWS,
    GREEDY,
    SHAPES,
    Case,
    cases_of,
    codes_to_decode,
    logits_to_draw_from,
    recording,
)


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


def drawn(model: Any) -> list[int]:
    """Return how often the reference's sampler draws each code, of the first codes of frames."""
    talker = model.model.talker
    logits = torch.from_numpy(logits_to_draw_from())
    processors = talker._get_logits_processor(
        generation_config=transformers.GenerationConfig(do_sample=True, top_k=5, top_p=0.9, temperature=0.9, repetition_penalty=1.3),
        input_ids_seq_length=0, encoder_input_ids=None, prefix_allowed_tokens_fn=None, logits_processor=[],
    )  # fmt: skip
    torch.manual_seed(0)
    rows = processors(torch.tensor([[3, 4]]), logits[None]).softmax(-1)
    return torch.multinomial(rows, DRAWS, replacement=True)[0].bincount(minlength=len(logits)).tolist()


def main() -> None:
    checkpoints, folder = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray] = {}
    for shape in SHAPES:
        model = load(str(checkpoints / shape))
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
            arrays["drawn"] = np.array(drawn(model), dtype=np.int32)
    np.savez_compressed(folder / "golden.npz", **arrays)
    (folder / "made_with.json").write_text(
        json.dumps({"qwen-tts": "0.1.1", "transformers": transformers.__version__, "torch": torch.__version__}) + "\n"
    )


if __name__ == "__main__":
    main()
