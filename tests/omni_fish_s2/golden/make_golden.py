"""Runs the reference implementation on the tests' inputs and writes its results, as numbers, beside this file.

Run by hand, never by the tests, with the reference beside ours:

    git clone https://github.com/fishaudio/fish-speech      # at 3dd1f85c402ee6f0a17c2971d3b0dd8d881ca139
    pip install einops loguru loralib ; pip download --no-deps descript-audio-codec==1.0.0   # and unzip it
    FISH_SPEECH=.../fish-speech DAC=.../unzipped python make_golden.py

Each shape's tiny checkpoint is written by ``omni tiny-checkpoint fish-s2`` (seed 0) and read by the reference, in
float32, on one thread. Its three imports that need packages for training and for sound files are replaced by empty
modules; its masks of 32768 x 32768 by small ones, which its codec does not read.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.numpy import save_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "helpers"))

import fish_cases  # noqa: E402
from fish_cases import CASES, FRAMES, MAX_NEW_TOKENS, REFERENCE_TEXT, SAMPLED, SAMPLED_CASES, SHAPES  # noqa: E402

from omni_fish_s2.codec.weights import CodecFile  # noqa: E402
from omni_testing.tiny.fish_s2 import write_tiny_checkpoint  # noqa: E402


def prepare_imports() -> None:
    """Make the reference's modules importable without the packages that are not needed here."""
    sys.path[:0] = [os.environ["FISH_SPEECH"], os.environ["DAC"]]
    audiotools, ml = types.ModuleType("audiotools"), types.ModuleType("audiotools.ml")
    audiotools.AudioSignal, ml.BaseModel = object, torch.nn.Module
    base = types.ModuleType("dac.model.base")
    base.CodecMixin = type("CodecMixin", (), {"get_delay": lambda self: 0})
    packages = {}
    for name in ("dac", "dac.model", "dac.nn"):
        packages[name] = types.ModuleType(name)
        packages[name].__path__ = [str(Path(os.environ["DAC"]) / name.replace(".", "/"))]
    sys.modules |= {"audiotools": audiotools, "audiotools.ml": ml, **packages, "dac.model.base": base}
    from loguru import logger

    logger.remove()
    from fish_speech.conversation import Conversation

    Conversation.visualize = lambda self, *arguments, **given: None


def reference_codec(path: Path | None, config: Any) -> Any:
    """The reference's codec with the dimensions of ``config``; without a path, on the meta device."""
    from fish_speech.models.dac import modded_dac, rvq

    def general(**given: Any) -> Any:
        return modded_dac.ModelArgs(
            block_size=8192, n_local_heads=-1, head_dim=64, rope_base=10000, norm_eps=1e-5, channels_first=True, **given
        )

    def around() -> Any:
        arguments = general(
            n_layer=config.layers, n_head=config.latent // 64, dim=config.latent, intermediate_size=config.intermediate
        )
        return modded_dac.WindowLimitedTransformer(arguments, input_dim=config.latent, window_size=128, causal=True)

    ones = torch.ones
    small = lambda *shape, **given: ones(*(64 if side == 32768 else side for side in shape), **given)  # noqa: E731
    with mock.patch.object(modded_dac.torch, "ones", small), torch.device("cpu" if path else "meta"):
        quantizer = rvq.DownsampleResidualVectorQuantize(
            input_dim=config.latent, n_codebooks=config.residuals, codebook_size=config.residual_codebook,
            codebook_dim=config.codebook_dim, downsample_factor=list(config.factors), post_module=around(),
            pre_module=around(), semantic_codebook_size=config.semantic_codebook,
        )  # fmt: skip
        codec = modded_dac.DAC(
            encoder_dim=config.encoder_dim, encoder_rates=list(config.encoder_rates), latent_dim=config.latent,
            decoder_dim=config.decoder_dim, decoder_rates=list(config.decoder_rates), quantizer=quantizer,
            encoder_transformer_layers=list(config.encoder_layers), decoder_transformer_layers=[0, 0, 0, 0],
            transformer_general_config=general,
        )  # fmt: skip
    if path is not None:
        codec.load_state_dict(torch.load(path, weights_only=True), strict=True)
    return codec.eval()


def codec_answers(checkpoint: Path) -> dict[str, np.ndarray]:
    config = CodecFile(checkpoint / "codec.pth").config
    codec = reference_codec(checkpoint / "codec.pth", config)
    frames = fish_cases.frames(1, FRAMES, config.semantic_codebook, config.residual_codebook, config.codebooks)
    sound = fish_cases.sound(FRAMES * 2048)
    with torch.inference_mode():
        wave = codec.from_indices(torch.from_numpy(frames.T.copy())[None])[0, 0].numpy()
        codes, _ = codec.encode(torch.from_numpy(sound)[None, None])
    assert codes.shape[-1] == FRAMES
    return {"decoded": as_int16(wave), "encoded": codes[0].T.numpy().astype(np.int16)}


def as_int16(wave: np.ndarray) -> np.ndarray:
    return np.round(wave * 32767).astype(np.int16)


def voices(config: Any, count: int) -> tuple[list[str], list[torch.Tensor]]:
    frames = fish_cases.voices(count, config.codebook_size, config.num_codebooks)
    return [REFERENCE_TEXT] * count, [torch.from_numpy(each.T.copy()) for each in frames]


def decoder_answers(checkpoint: Path) -> dict[str, np.ndarray]:
    from fish_speech.models.text2semantic import inference
    from fish_speech.models.text2semantic.llama import DualARTransformer

    model = DualARTransformer.from_pretrained(str(checkpoint), load_weights=True).eval()
    model._cache_setup_done = False
    answers: dict[str, np.ndarray] = {}

    def ask(name: str, case: dict[str, Any], **sampling: Any) -> None:
        seed = sampling.pop("seed", 0)
        torch.manual_seed(seed)
        texts, codes = voices(model.config, case.get("voices", 0))
        prompts: list[np.ndarray] = []
        generate = inference.generate

        def recording(**given: Any) -> Any:
            prompts.append(given["prompt"].numpy().astype(np.int16))
            return generate(**given)

        with mock.patch.object(inference, "generate", recording):
            produced = inference.generate_long(
                model=model, device="cpu", decode_one_token=inference.decode_one_token_ar, text=case["text"],
                max_new_tokens=case.get("max_new_tokens", MAX_NEW_TOKENS), chunk_length=case.get("segment_bytes", 512),
                prompt_text=texts or None, prompt_tokens=codes or None, **sampling,
            )  # fmt: skip
            spoken = [each.codes.T.numpy() for each in produced if each.action == "sample"]
        answers[f"{name}.codes"] = np.concatenate(spoken).astype(np.int16)
        answers[f"{name}.turns"] = np.array([len(each) for each in spoken], dtype=np.int16)
        answers[f"{name}.prompt"] = prompts[-1]

    for name, case in CASES.items():
        ask(name, case, temperature=1.0, top_p=1.0, top_k=1)
    for way, sampling in SAMPLED.items():
        for name in SAMPLED_CASES:
            ask(f"{name}/{way}", CASES[name], **sampling)
    answers |= first_logits(model, answers["plain.prompt"][0])
    return answers


def first_logits(model: Any, prompt: np.ndarray) -> dict[str, np.ndarray]:
    """Logits of the step after a prompt without codes: the slow decoder's, and the fast one's for codes 0, 1, 2, ..."""
    values = torch.zeros(model.config.num_codebooks + 1, len(prompt), dtype=torch.long)
    values[0] = torch.from_numpy(prompt)
    with torch.inference_mode():
        result = model.forward_generate(values[None], torch.arange(len(prompt)))
        model.forward_generate_fast(result.hidden_states, torch.tensor([0]))
        fast = []
        for index in range(1, model.config.num_codebooks):
            embedded = model.fast_embeddings(torch.tensor([index - 1]))
            fast.append(model.forward_generate_fast(embedded, torch.tensor([index]))[0, 0])
    return {"slow logits": result.logits[0, -1].numpy(), "fast logits": torch.stack(fast).numpy()}


def released_names() -> dict[str, Any]:
    """Every name and shape of the reference's networks at the released dimensions."""
    from fish_released import RELEASED
    from fish_speech.models.text2semantic import llama

    from omni_fish_s2.codec.config import CodecConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(RELEASED))
        arguments = llama.BaseModelArgs.from_pretrained(folder)
    arguments.max_seq_len = 64
    with torch.device("meta"), mock.patch.object(llama.DualARTransformer, "_init_weights"):
        decoders = llama.DualARTransformer(arguments)
    codec = reference_codec(None, CodecConfig())
    return {
        "decoders": {name: list(tensor.shape) for name, tensor in decoders.state_dict().items()},
        "codec": {name: list(tensor.shape) for name, tensor in codec.state_dict().items()},
    }


def main() -> None:
    torch.set_num_threads(1)
    prepare_imports()
    (HERE / "released_names.json").write_text(json.dumps(released_names(), indent=0, sort_keys=True) + "\n")
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = write_tiny_checkpoint(folder, shape=shape)
            answers = decoder_answers(checkpoint) | codec_answers(checkpoint)
            digest = hashlib.sha256()
            for path in sorted(checkpoint.glob("*.safetensors")):
                digest.update(path.read_bytes())
        answers = {name: np.ascontiguousarray(each) for name, each in answers.items()}
        save_file(answers, HERE / f"{shape}.safetensors", {"weights": digest.hexdigest(), "seed": "0"})
        lengths = {
            name.removesuffix(".turns"): each.tolist() for name, each in answers.items() if name.endswith(".turns")
        }
        print(shape, lengths)


if __name__ == "__main__":
    main()
