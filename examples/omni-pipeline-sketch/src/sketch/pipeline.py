"""The pipeline: one stage reads and hands its keys and values on, the other draws with them. Imports no torch."""

from __future__ import annotations

from typing import Any

from omni_core.api import PipelineConfig, StageConfig
from omni_torch.api import check_options
from sketch.interface import INTERFACE, OPTIONS


def sketch(model_path: str, **options: Any) -> PipelineConfig:
    """A text in, and an image if one is to be seen; an image out. ``options``: see :data:`.interface.OPTIONS`.

    Raises:
        ConfigError: an unknown option, or a value that it cannot have.
    """
    check_options(options, OPTIONS, processes=("separate", "one"))
    separate = options.get("processes", "separate") == "separate"
    ranks = options.get("tp_size", 1)
    drawing = {name: options[name] for name in ("max_batch_size",) if name in options}
    return PipelineConfig(
        model_path=model_path,
        name="sketch",
        stages=[
            StageConfig(
                name="read",
                process=None if ranks > 1 else "read" if separate else "sketch",
                model_runner="sketch-reader",
                scheduler="engine",
                tp_size=ranks,
                expand_fn="sketch.parts:parts",
                next="draw",
            ),
            StageConfig(
                name="draw",
                process="draw" if separate else "sketch",
                factory="sketch.drawer:create_drawer",
                factory_args=drawing,
                terminal=True,
            ),
        ],
        terminal_stages_fn="sketch.parts:check",
        interface=INTERFACE,
    )
