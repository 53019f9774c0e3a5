"""Finding a checkpoint: a local folder, or a hub id that is downloaded.

Light: nothing here imports torch. :mod:`omni_core.model_runner.weights` reads the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from omni_core.errors import ConfigError


def resolve_checkpoint(model: str, files: Sequence[str]) -> str:
    """The local folder of a checkpoint: ``model`` itself, or a hub id, downloaded (with a progress bar) if need be.

    Called in the parent, before any stage starts, so that a download never counts against a start-up time-out. Downloading
    needs ``huggingface_hub``, which whoever reads checkpoints depends on.

    Args:
        files: patterns of the files to download.

    Raises:
        ConfigError: neither a folder with a ``config.json`` nor a repository that can be reached.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder} is no checkpoint: it has no config.json")
        return str(folder)
    if folder.is_absolute() or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        raise ConfigError(f"--model {model!r} is neither an existing folder nor a hub id of the form 'owner/name'")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return str(snapshot_download(model, allow_patterns=list(files)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ConfigError(f"{model!r} is no local folder and could not be downloaded: {error}") from error
