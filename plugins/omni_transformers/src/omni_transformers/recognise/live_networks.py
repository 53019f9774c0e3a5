"""The networks that hear sound as it comes, by the names of their architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_core.api import ConfigError, Scheduler
from omni_transformers.checkpoints import Source, read
from omni_transformers.recognise.live import Live, Network
from omni_transformers.recognise.live_kyutai import Kyutai
from omni_transformers.recognise.live_transducer import StreamingTransducer
from omni_transformers.recognise.live_voxtral import VoxtralRealtime
from omni_transformers.words.engine_layers import Unfit

NETWORKS: dict[str, Callable[[Source, str, str, int], Network[Any]]] = {
    "KyutaiSpeechToTextForConditionalGeneration": Kyutai,
    "Nemotron3_5AsrForRNNT": StreamingTransducer,
    "NemotronAsrStreamingForRNNT": StreamingTransducer,
    "VoxtralRealtimeForConditionalGeneration": VoxtralRealtime,
}

_SMALL = 128
"""Requests at one time of a network whose streams hold a few MiB: as many as a server computes by default."""


def create_live(
    model_path: str,
    device: str = "cpu",
    dtype: str = "auto",
    max_running: int | None = None,
    max_audio_seconds: float | None = None,
) -> Scheduler:
    """Return the stage that writes sound down as it comes.

    Args:
        max_running: requests at one time; further ones wait. By default 128 of Nemotron, 16 of the others, whose streams hold more.
        max_audio_seconds: as of :class:`Live`.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """
    source = read(model_path)
    kind = NETWORKS[source.architecture.name]
    most = (_SMALL if kind is StreamingTransducer else 16) if max_running is None else max_running
    try:
        network = kind(source, device, dtype, most)
    except Unfit as unfit:
        raise ConfigError(f"{model_path}: does not fit the engine: {'; '.join(unfit.reasons)}") from unfit
    return Live(network, max_audio_seconds, most)
