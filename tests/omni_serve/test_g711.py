"""G.711 beside FFmpeg's."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

from omni_serve.g711 import Law, from_law, to_law


@pytest.mark.parametrize(("kind", "codec"), [("pcmu", "pcm_mulaw"), ("pcma", "pcm_alaw")])
def test_g711_is_that_of_ffmpeg(kind: Law, codec: str) -> None:
    samples = np.arange(-32768, 32768, 8).astype(np.int16)
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as container:
        stream = container.add_stream(codec, rate=8000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    theirs = file.getvalue()[-len(samples) :]
    file.seek(0)
    with av.open(file) as container:
        decoded = np.concatenate([frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)])
    assert np.array_equal(from_law(theirs, kind), decoded)
    # Ours takes the nearest level, theirs may round down: never further from the sample.
    mine = from_law(to_law(samples, kind), kind).astype(int)
    assert (np.abs(mine - samples) <= np.abs(decoded.astype(int) - samples)).all()
