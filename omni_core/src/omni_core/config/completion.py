"""Completes a config for the machine where it runs: the devices and budgets that it leaves open, and its checkpoint's files.

The core knows no checkpoint: a pipeline names the functions that do, ``placement_fn`` and ``fetch_fn``. Both are called in the
parent, before any process starts; each clears its field, so that a completed config is not completed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, field, frozen

from omni_core.config.devices import detect
from omni_core.config.placement import check, plan
from omni_core.config.schema import PipelineConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError
from omni_core.references import load


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


def placed(config: PipelineConfig, machine: Machine) -> Placement:
    """Return a valid config with the devices and budgets that its ``placement_fn`` chooses.

    Raises:
        DoesNotFitError: the pipeline does not fit. ConfigError: what the function chose is invalid.
    """
    if config.placement_fn is None:
        return Placement(config)
    placement: Placement = load(config.placement_fn)(config, machine)
    placement = evolve(placement, config=evolve(placement.config, placement_fn=None))
    validate(placement.config)
    return placement


def completed(config: PipelineConfig) -> PipelineConfig:
    """Return ``config`` placed on this machine, checked against its GPUs, and with its checkpoint on disk. Raises as :func:`placed`.

    Blocks while a checkpoint is downloaded. A pipeline that does not fit is refused before.
    """
    validate(config)
    if config.placement_fn is not None or any(stage.gpu is not None for stage in config.stages):
        gpus = detect()
        config = placed(config, Machine(gpus)).config
        check([process for process in plan(config) if process.host is None and process.gpus], gpus)
    if config.fetch_fn is not None:
        config = evolve(config, model_path=load(config.fetch_fn)(config.model_path), fetch_fn=None)
    return config
