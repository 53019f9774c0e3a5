"""The model of a pipeline for which none is given: a tiny checkpoint with random weights, which omni-testing writes."""

from __future__ import annotations

from omni_core.api import ConfigError, load


def random_checkpoint(name: str, released: str) -> tuple[str, str]:
    """Return a folder, and a notice about it: what ``PipelineComponent.default_model`` asks for.

    Args:
        name: of a model that ``omni tiny-checkpoint`` knows.
        released: the hub id of the released checkpoint.

    Raises:
        ConfigError: omni-testing is not installed.
    """
    try:
        folder = load("omni_testing.tiny:made_once")(name)
    except (ConfigError, ModuleNotFoundError) as error:
        what = f"give --model {released}, or pip install omni-testing for a tiny checkpoint with random weights"
        raise ConfigError(f"no model is given: {what} ({error})") from error
    return folder, (
        "No --model given: using a tiny checkpoint with RANDOM weights, whose output is noise. "
        f"Pass --model {released}; omni-demo has small models that answer."
    )
