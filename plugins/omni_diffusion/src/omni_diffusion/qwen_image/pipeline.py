"""Qwen-Image as a pipeline config. Light: nothing here imports torch."""

from __future__ import annotations

from typing import Any, Unpack

from omni_core.api import ConfigError, PipelineConfig, StageConfig
from omni_diffusion.qwen_image.interface import INTERFACE, OPTIONS, with_adapters
from omni_diffusion.qwen_image.options import Options
from omni_diffusion.qwen_image.works import works as works
from omni_torch.api import DTYPES, check_options, download, random_checkpoint

INDEX = "model_index.json"
FILES = ("*.json", "*/*.json", "*/*.txt", "*/*.safetensors", "*/*.jinja")
"""The checkpoint files that are read, and downloaded."""

LIBRARIES = [
    "diffusers.models.transformers.transformer_qwenimage",
    "diffusers.models.autoencoders.autoencoder_kl_qwenimage",
]
"""Modules that the stages import, and with them transformers: most of the time of a start, so they are imported once for all."""


def default_model() -> tuple[str, str]:
    """Return a tiny checkpoint with random weights, and a notice about it."""
    return random_checkpoint("qwen-image", "Qwen/Qwen-Image")


def qwen_image(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """A text in, and an image where the checkpoint edits images; an image out. ``options``: see :data:`.interface.OPTIONS`.

    Raises:
        ConfigError: an unknown option, or a value that it cannot have.
    """
    given: dict[str, Any] = {**options}
    check_options(given, OPTIONS, dtype=("auto", *DTYPES), processes=("separate", "one"))
    adapters = given.get("adapters", {})
    if not isinstance(adapters, dict) or not all(isinstance(each, str) for pair in adapters.items() for each in pair):
        raise ConfigError(f"--option adapters={adapters!r}: must map names to files or folders")
    separate = given.get("processes", "separate") == "separate"
    dtype = {"dtype": given["dtype"]} if given.get("dtype", "auto") != "auto" else {}

    def arguments(*names: str) -> dict[str, Any]:
        return dtype | {name: given[name] for name in names if name in given}

    def place(stage: str) -> dict[str, Any]:
        return {"process": stage if separate else "pipeline", "gpu": given.get("gpu"), "preload": list(LIBRARIES)}

    return PipelineConfig(
        model_path=model_path,
        name="qwen-image",
        stages=[
            StageConfig(
                name="encode",
                factory="omni_diffusion.qwen_image.encoder:create_encoder",
                factory_args=arguments("prompt_cache"),
                expand_fn="omni_diffusion.parts:parts",
                next="denoise",
                **place("encode"),
            ),
            StageConfig(
                name="denoise",
                factory="omni_diffusion.qwen_image.denoiser:create_denoiser",
                factory_args=arguments("max_batch_size", "max_running", "adapters"),
                next="decode",
                stream_to=["decode"],
                **place("denoise"),
            ),
            StageConfig(
                name="decode",
                factory="omni_diffusion.qwen_image.decoder:create_decoder",
                factory_args=arguments(),
                terminal=True,
                **place("decode"),
            ),
        ],
        fetch_fn="omni_diffusion.qwen_image.pipeline:fetch",
        interface=with_adapters(INTERFACE, list(adapters)),
    )


def fetch(model: str) -> str:
    """Download the checkpoint; return its folder."""
    return download(model, FILES, INDEX)
