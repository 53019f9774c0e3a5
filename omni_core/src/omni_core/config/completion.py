"""Completes a config for the machine where it runs: the devices and budgets that it leaves open, and its checkpoint's files.

The core knows no checkpoint: a pipeline names the functions that do, ``placement_fn`` and ``fetch_fn``. Both are called in the
parent, before any process starts; each clears its field, so that a completed config is not completed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve, field, frozen

from omni_core.config.schema import PipelineConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError
from omni_core.references import load
from omni_core.services import FITTING


@frozen
class Machine:
    """A machine to place stages on.

    Attributes:
        gpus: the bytes of each GPU; ``None`` if they are not known.
        here: true for the machine of this process, whose memory and processor a ``placement_fn`` may look at.
    """

    gpus: Sequence[int] | None
    here: bool = True


@frozen
class Placement:
    """A config with devices and budgets, and by stage a note that explains them, for ``omni plan``."""

    config: PipelineConfig
    notes: dict[str, str] = field(factory=dict)


class DoesNotFitError(ConfigError):
    """The pipeline needs more memory than the machine has; the message says what would do."""


def completed(config: PipelineConfig, located: Callable[[str], str] = str) -> PipelineConfig:
    """Return ``config`` placed on this machine, checked against its GPUs, and with its checkpoint on disk.

    Blocks while a checkpoint is downloaded. A pipeline that does not fit is refused before. ``located`` adds to problems where the
    values that they name were written (:meth:`ResolvedConfig.located`).

    Raises:
        DoesNotFitError: the pipeline does not fit. ConfigError: it is invalid, or what ``placement_fn`` chose.
        PluginError: it uses GPUs, and no plugin asks the machine (:data:`omni_core.services.FITTING`).
    """
    validate(config)
    if config.placement_fn is not None or any(stage.gpu is not None for stage in config.stages):
        config = FITTING.need("stages on GPUs need")(config, located)
    if config.fetch_fn is not None:
        config = evolve(config, model_path=load(config.fetch_fn)(config.model_path), fetch_fn=None)
    parts = {
        name: evolve(part, model_path=load(part.fetch_fn)(part.model_path), fetch_fn=None) if part.fetch_fn else part
        for name, part in config.parts.items()
    }
    return evolve(config, parts=parts)
