"""The stage that finds when words are heard. Light: imports neither torch nor transformers."""

from __future__ import annotations

from omni_core.api import ConfigError, StageConfig
from omni_torch.api import config_folder
from omni_transformers.checkpoints import read
from omni_transformers.options import Given

STAGE = "align"


def aligner_stage(given: Given, aligner: str) -> StageConfig:
    """Return the stage behind a voice. On a CPU it has a process of its own, so that the voice speaks on meanwhile.

    The voice streams what :class:`omni_transformers.align.stage.Aligner` reads; its interface declares ``word_times``
    and has :data:`omni_core.api.WORD_TIMES` among its ``params``.

    Args:
        aligner: folder or hub id of a CTC recogniser.

    Raises:
        ConfigError: it is none.
    """
    architecture = read(config_folder(aligner)).architecture
    if architecture.form != "ctc":
        raise ConfigError(
            f"--option aligner={aligner}: {architecture.name} is no CTC recogniser, such as facebook/wav2vec2-base-960h"
        )
    factory = "omni_transformers.align.stage:create_aligner"
    arguments = {"aligner": aligner, **given.network}
    process = STAGE if given.gpu is None else "model"  # processes that share a GPU divide its memory
    return given.stage(STAGE, process, factory=factory, factory_args=arguments, terminal=True)
