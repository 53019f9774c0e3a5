"""Asks the published implementation, the package ``kokoro``, for what our network is compared with: ``nox -s "references(kokoro)"``.

It needs torch, transformers, loguru and the packages of ``requirements.txt`` beside this file, installed without what they depend on.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import torch

from omni_kokoro.tiny import config, write_tiny_checkpoint

HERE = Path(__file__).parent


def published() -> types.ModuleType:
    """Return the module of the network; that of the package imports spaCy."""
    found = importlib.util.find_spec("kokoro")
    package = types.ModuleType("kokoro")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["kokoro"] = package
    return importlib.import_module("kokoro.model")


def main() -> None:
    model = published()
    given = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
    for name, changes in given["shapes"].items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_tiny_checkpoint(folder, changes=changes)
            network = model.KModel(
                "hexgrad/Kokoro-82M", str(path / "config.json"), str(path / "kokoro-v1_0.pth")
            ).eval()
            answers = {}
            for number, case in enumerate(given["sentences"]):
                table = torch.load(path / "voices" / f"{case['voice']}.pt", weights_only=True)
                torch.manual_seed(case["seed"])
                row = table[len(case["phonemes"]) - 1]
                spoken = network(case["phonemes"], row, case["speed"], return_output=True)
                answers[f"sound{number}"] = spoken.audio.reshape(-1).numpy().astype(np.float32)
                answers[f"durations{number}"] = spoken.pred_dur.reshape(-1).numpy().astype(np.int64)
            np.savez_compressed(HERE / f"{name}.npz", **answers)
    with torch.device("meta"):
        lines = [f"{json.dumps(name)}: {json.dumps(shape)}" for name, shape in shapes(model, config()).items()]
        (HERE / "shapes.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def shapes(model: types.ModuleType, given: dict) -> dict[str, list[int]]:
    """Return the shapes of the published network's tensors by name."""
    from transformers import AlbertConfig

    parts = {
        "bert": model.CustomAlbert(AlbertConfig(vocab_size=given["n_token"], **given["plbert"])),
        "bert_encoder": torch.nn.Linear(given["plbert"]["hidden_size"], given["hidden_dim"]),
        "predictor": model.ProsodyPredictor(
            given["style_dim"], given["hidden_dim"], given["n_layer"], given["max_dur"]
        ),
        "text_encoder": model.TextEncoder(
            given["hidden_dim"], given["text_encoder_kernel_size"], given["n_layer"], given["n_token"]
        ),
        "decoder": model.Decoder(given["hidden_dim"], given["style_dim"], given["n_mels"], **given["istftnet"]),
    }
    return {
        f"{part}.{name}": list(tensor.shape)
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }


if __name__ == "__main__":
    main()
