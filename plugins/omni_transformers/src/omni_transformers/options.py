"""Options of the pipeline."""

from __future__ import annotations

from typing import Any, TypedDict

from attrs import frozen

from omni_core.api import ConfigError, StageConfig
from omni_torch.api import DTYPES, check_options

LEAST_STEP, MOST_STEP = 0.2, 10.0
"""Bounds of ``live_step``."""

BACKENDS = ("auto", "engine", "steps", "generate")

OPTIONS = {
    "backend": "auto (default: the fastest that the model allows), engine (continuous batching), steps (requests take turns by token), "
    "generate (one after the other)",
    "dtype": "of the weights: auto (default: the checkpoint's; on a CPU float32 in place of float16), float32, bfloat16, float16",
    "gpu": "the number of a GPU; by default the CPU",
    "tp_size": "tensor parallel ranks, processes among which the engine splits the decoder; with gpu=N, on that GPU and the next ones",
    "max_audio_seconds": "longest recording",
    "diarizer": "folder or hub id of a Nemotron diarizer, which tells speakers apart beside a recogniser",
    "live_step": "seconds of new sound after which a recogniser that reads windows writes a live one down again; 1 by default",
    "vocoder": "folder or hub id of the vocoder or codec, of a model that has it in a checkpoint of its own",
    "aligner": "folder or hub id of a CTC recogniser that finds when the words of the speech are heard, of a model that does not know it",
    "voices": "folder of voices, a file for each, in place of the checkpoint's own",
}


class Options(TypedDict, total=False):
    """Options as they are given; see :data:`OPTIONS`."""

    backend: str
    dtype: str
    gpu: int
    tp_size: int
    max_audio_seconds: float
    diarizer: str
    live_step: float
    vocoder: str
    voices: str
    aligner: str


@frozen
class Given:
    """Checked options."""

    backend: str = "auto"
    dtype: str = "auto"
    gpu: int | None = None
    tp_size: int | None = None
    max_audio_seconds: float | None = None
    diarizer: str | None = None
    live_step: float | None = None
    vocoder: str | None = None
    voices: str | None = None
    aligner: str | None = None

    @property
    def network(self) -> dict[str, Any]:
        """``factory_args`` of a stage that loads the model."""
        return {"dtype": self.dtype}

    def stage(self, name: str, process: str = "model", **fields: Any) -> StageConfig:
        """Return a stage; by default all share a process, and the model that is loaded there; all of a run share the imports."""
        module = (fields.get("factory") or fields["model_runner"]).partition(":")[0]
        return StageConfig(name=name, process=process, gpu=self.gpu, preload=[module], **fields)


def checked(options: Options) -> Given:
    """Check the options.

    Raises:
        ConfigError: an unknown option, or a value that it cannot have.
    """
    check_options(options, OPTIONS, backend=BACKENDS, dtype=("auto", *DTYPES))
    given = Given(**options)
    if given.live_step is not None and (
        isinstance(given.live_step, bool)
        or not isinstance(given.live_step, int | float)
        or not LEAST_STEP <= given.live_step <= MOST_STEP
    ):
        raise ConfigError(
            f"--option live_step={given.live_step}: must be from {LEAST_STEP:g} to {MOST_STEP:g} seconds of sound"
        )
    if given.tp_size is not None and (type(given.tp_size) is not int or given.tp_size < 1):
        raise ConfigError(f"--option tp_size={given.tp_size}: must be a number of processes, at least 1")
    if given.tp_size not in (None, 1) and given.backend in ("steps", "generate"):
        raise ConfigError(
            f"--option tp_size={given.tp_size}: only the engine splits a model; leave out backend={given.backend}"
        )
    return given
