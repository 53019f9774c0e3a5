"""Writes a complete checkpoint in the published layout, tiny, with random weights: for tests and first tries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = ';:,.!?—…"()“” \u0303ʣʥʦʨᵝꭧAIOQSTWYᵊabcdefhijklmnopqrstuvwxyzɑɐɒæβɔɕçɖðʤəɚɛɜɟɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔˈˌːʰʲ↓→↗↘ᵻ'
"""The published phonemes."""

VOICES = ("af_bella", "af_heart", "bf_emma", "ff_siwis")

TINY: dict[str, Any] = {
    "hidden_dim": 32,
    "style_dim": 8,
    "n_layer": 2,
    "max_dur": 20,
    "plbert": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48, "num_hidden_layers": 2},
    "istftnet": {"upsample_initial_channel": 32, "decoder_width": 48},
}
"""Changes to the published config that make a checkpoint tiny."""


def config(**changes: Any) -> dict[str, Any]:
    """Return a ``config.json``: the published one, with changes to it and to its sections."""
    found: dict[str, Any] = {
        "istftnet": {
            "upsample_kernel_sizes": [20, 12],
            "upsample_rates": [10, 6],
            "gen_istft_hop_size": 5,
            "gen_istft_n_fft": 20,
            "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
            "resblock_kernel_sizes": [3, 7, 11],
            "upsample_initial_channel": 512,
        },
        "dim_in": 64,
        "dropout": 0.2,
        "hidden_dim": 512,
        "max_conv_dim": 512,
        "max_dur": 50,
        "multispeaker": True,
        "n_layer": 3,
        "n_mels": 80,
        "n_token": 178,
        "style_dim": 128,
        "text_encoder_kernel_size": 5,
        "plbert": {
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 2048,
            "max_position_embeddings": 512,
            "num_hidden_layers": 12,
            "dropout": 0.1,
        },
        "vocab": {phoneme: number for number, phoneme in enumerate(VOCABULARY, 1)},
    }
    for name, value in changes.items():
        found[name] = {**found[name], **value} if isinstance(value, dict) else value
    return found


def write_tiny_checkpoint(directory: str | Path, *, seed: int = 0, changes: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint: config, weights and four voices under the published names.

    Args:
        seed: of the weights. The same seed gives the same numbers.
        changes: to the published config; by default those of :data:`TINY`.
    """
    import torch

    from omni_kokoro.config import read_config
    from omni_kokoro.network.model import Kokoro

    folder = Path(directory)
    (folder / "voices").mkdir(parents=True, exist_ok=True)
    given = config(**(TINY if changes is None else changes))
    (folder / "config.json").write_text(json.dumps(given, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    with torch.device("meta"):
        network = Kokoro(read_config(folder))
    numbers = np.random.default_rng(seed)
    parts: dict[str, dict[str, Any]] = {}
    for name, empty in network.named_parameters():
        if ".norm." in name:
            continue  # the published file has none
        part, rest = name.split(".", 1)
        tensors = parts.setdefault(part, {})
        tensor = torch.from_numpy(_numbers(name, tuple(empty.shape), numbers))
        if _is_normalised(network, name):
            stem = f"module.{rest.removesuffix('.weight')}"
            tensors[f"{stem}.weight_g"] = torch.linalg.vector_norm(tensor, dim=(1, 2), keepdim=True)
            tensors[f"{stem}.weight_v"] = tensor
        else:
            tensors[f"module.{rest}"] = tensor
    torch.save(parts, folder / "kokoro-v1_0.pth")
    for number, voice in enumerate(VOICES):
        table = 0.5 * np.random.default_rng((seed, number)).standard_normal((510, 1, 2 * given["style_dim"]))
        torch.save(torch.from_numpy(table.astype(np.float32)), folder / "voices" / f"{voice}.pt")
    return folder


def _is_normalised(network: Any, name: str) -> bool:
    """Return whether the published file has a weight as length and direction."""
    import torch

    module = network.get_submodule(name.rpartition(".")[0]) if not name.rpartition(".")[2].isdigit() else None
    convolution = isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d)
    plain = ("F0_proj", "N_proj", "noise_convs")
    return convolution and name.endswith(".weight") and not any(f"{each}." in name for each in plain)


def _numbers(name: str, shape: tuple[int, ...], numbers: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return weights with which sound is neither silent nor loud, and phonemes are short."""
    fan = max(1, int(np.prod(shape[1:])))
    found = numbers.standard_normal(shape) / np.sqrt(fan)
    if "alpha" in name or "LayerNorm.weight" in name or "layer_norm.weight" in name or name.endswith("gamma"):
        found = 1 + 0.1 * numbers.standard_normal(shape)
    elif "duration_proj" in name:
        found = 8 * found if name.endswith("weight") else -4.0 + 0.5 * found
    elif name == "predictor.F0_proj.bias":
        found = 15 + 0 * found
    elif name == "predictor.F0_proj.weight":
        found = 0.002 * found  # so even that the roundings of another processor do not sum up to another sound
    elif "conv_post" in name:
        found = 0.3 * found - (1.0 if name.endswith("bias") else 0.0)
    elif "noise_convs" in name and name.endswith("weight"):
        # Little of phases, which jump from pi to -pi, and nothing of those of real numbers: the same for another processor.
        found[:, shape[1] // 2 :] *= 0.01
        found[:, [shape[1] // 2, -1]] = 0
    elif name.endswith("bias"):
        found = 0.1 * found
    return found.astype(np.float32)
