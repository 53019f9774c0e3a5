"""The voices of a checkpoint, from ``spk_dict.pt``: for each a token of the thinker, an embedding and mel frames of a recording."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from omni_core.api import ConfigError, InvalidRequestError, OmniRequest
from omni_qwen25.interface import DEFAULT_SPEAKER
from omni_torch.api import checked_file, load_checked

if TYPE_CHECKING:
    import torch

FILE = "spk_dict.pt"


@frozen(eq=False)
class Voice:
    """A voice.

    Attributes:
        token: the id, in the thinker's vocabulary, that begins the text of speech.
        embedding: ``[width]`` float32.
        recording: mel frames, ``[frames, mel_bins]`` float32.
    """

    token: int
    embedding: torch.Tensor
    recording: torch.Tensor


def load_voices(folder: str | Path) -> dict[str, Voice]:
    """Read the voices by name. The file is read as data: it cannot run code.

    Raises:
        ConfigError: it is missing, damaged, or holds something else.
    """
    import torch

    path = checked_file(Path(folder) / FILE)
    found = load_checked(str(path), lambda: torch.load(path, map_location="cpu", weights_only=True))
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"{path} must hold voices by name, holds a {type(found).__name__}")
    return {str(name): _voice(each, f"{path}: {name}") for name, each in found.items()}


def voice_names(folder: str | Path) -> list[str] | None:
    """Return the names of the voices without torch; ``None`` if the file is not here or of another form."""
    path = Path(folder) / FILE
    try:
        with zipfile.ZipFile(checked_file(path)) as archive:
            name = next(each for each in archive.namelist() if each.endswith("/data.pkl"))
            with archive.open(name) as stream:
                found = _Names(stream).load()
        return sorted(map(str, found)) if isinstance(found, dict) else None
    except (
        ConfigError,
        OSError,
        zipfile.BadZipFile,
        StopIteration,
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        ValueError,
    ):
        return None


def voice_of(request: OmniRequest, voices: Mapping[str, Any]) -> str:
    """Return the name of a request's voice, as the checkpoint writes it.

    Raises:
        InvalidRequestError: there is no such voice.
    """
    wanted = request.metadata.get("speaker") or DEFAULT_SPEAKER
    found = [name for name in voices if isinstance(wanted, str) and name.casefold() == wanted.casefold()]
    if not found:
        raise InvalidRequestError(f"metadata.speaker: {wanted!r} is unknown; known voices: {', '.join(sorted(voices))}")
    return found[0]


def _voice(found: Any, where: str) -> Voice:
    try:
        return Voice(int(found["bos_token"]), found["cond"].float().flatten(), found["ref_mel"].float()[0])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise ConfigError(f"{where}: must have bos_token, cond and ref_mel: {error}") from error


class _Names(pickle.Unpickler):
    """Reads the names only: tensors are nothing, and anything but a tensor's parts is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" or (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _nothing
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a tensor")

    def persistent_load(self, pid: Any) -> None:
        return None


def _nothing(*arguments: Any) -> None:
    return None
