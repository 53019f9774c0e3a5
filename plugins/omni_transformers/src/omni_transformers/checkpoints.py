"""A checkpoint's config, read without transformers: which pipeline it is, and whether it can be run."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from attrs import field, frozen

from omni_core.api import ConfigError
from omni_torch.api import download, read_json
from omni_transformers.adapters import adapter_of
from omni_transformers.architectures import REFUSED, Architecture, architecture_of, made_from
from omni_transformers.gguf_files import folder_of, is_gguf
from omni_transformers.options import Given

FILES = (
    *("README.md", "*.json", "*.safetensors", "*.txt", "*.jinja", "*.model", "*.tiktoken", "*.ttf"),
    "additional_chat_templates/*.jinja",
    *(f"{folder}/{files}" for folder in ("vocoder", "audio_tokenizer") for files in ("*.json", "*.safetensors")),
    *("voices/*.safetensors", "voices/*.npy", "speaker_embeddings/*.npy", "speaker_embeddings/v2/*.npy"),
)
"""The files of a repository that are downloaded: neither code nor pickles."""

_CODE = "it brings code of its own, which is never run here"


@frozen
class Source:
    """A checkpoint whose config was read.

    Attributes:
        folder: holds its ``config.json``; of a hub id that was not downloaded, little else.
        config: ``config.json``.
        architecture: its model class.
        given: the options of the pipeline; the defaults where only the checkpoint is known.
    """

    folder: Path
    config: dict[str, Any]
    architecture: Architecture
    given: Given = field(factory=Given)

    def file(self, name: str) -> dict[str, Any]:
        """Return another JSON file of the folder; empty if it is missing.

        Raises:
            ConfigError: it cannot be read.
        """
        path = self.folder / name
        return read_json(path) if path.exists() else {}

    @property
    def generation(self) -> dict[str, Any]:
        """``generation_config.json``."""
        return self.file("generation_config.json")


def read(folder: str, part: str | None = None) -> Source:
    """Read the config of a checkpoint's folder.

    Args:
        part: the architecture that it must have: one that belongs to a model of another checkpoint, such as a vocoder.

    Raises:
        ConfigError: it cannot be run here; the message says why and what to do.
    """
    path = Path(folder_of(folder) if is_gguf(folder) else folder)
    if (path / "adapter_config.json").exists():
        raise ConfigError(
            f"{folder}: is an adapter (adapter_config.json), which names another checkpoint to load; merge it into its base model "
            "and save that"
        )
    config = read_json(path / "config.json")
    if part is not None:
        named = config.get("architectures")
        if not isinstance(named, list) or part not in named:
            raise ConfigError(f"{folder}/config.json: its architectures are {named}; a {part} is needed here")
        return Source(path, config, Architecture(part, str(config.get("model_type")), "speak", "part", []))
    found = architecture_of(config)
    if found is not None and found.name in REFUSED:
        raise ConfigError(f"{folder}/config.json: {found.name} is not served: {REFUSED[found.name]}")
    if found is not None:
        return Source(path, config, found)
    named = config.get("architectures") or [config.get("model_type")]
    name = str(named[0]) if isinstance(named, list) and named and named[0] else "a model without a name"
    if adapter_of(config) is not None:
        return Source(path, config, Architecture(name, str(config.get("model_type")), "speak", "adapter", ["text"]))
    if "auto_map" in config:
        raise ConfigError(f"{folder}/config.json: {name} is no model of transformers; {_CODE}")
    newer = _version(config.get("transformers_version"))
    hint = ""
    if newer > _version(_installed()):
        hint = f"; it was saved by transformers {config['transformers_version']}, {_installed()} is installed: pip install -U transformers"
    raise ConfigError(
        f"{folder}/config.json: {name} neither speaks, listens, sees nor writes, or is not in transformers {made_from()}{hint}"
    )


def refusal(folder: str) -> str | None:
    """Return why a checkpoint cannot be run here; ``None``: it can."""
    try:
        read(folder)
    except ConfigError as error:
        return str(error)
    return None


def fetch(model_path: str) -> str:
    """Download a checkpoint, if it is a hub id, and the released vocoder or codec that its model speaks through; return its folder.

    Of a GGUF file it is that of its config and tokenizer.
    """
    if is_gguf(model_path):
        return folder_of(model_path)
    folder = download(model_path, files=FILES)
    if not Path(model_path).expanduser().is_dir():
        from omni_transformers.speak.speaks import PARTS

        name, usual = PARTS.get(read(folder).architecture.name, ("", ""))
        if usual and not (Path(folder) / name / "config.json").exists():
            download(usual)
    return folder


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that says something."""
    return next((each for each in str(error).splitlines() if each.strip()), type(error).__name__).strip()


def _installed() -> str:
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return made_from()


def _version(text: Any) -> tuple[int, ...]:
    parts = text.split(".")[:3] if isinstance(text, str) else []
    return tuple(int("".join(filter(str.isdigit, each)) or 0) for each in parts)
