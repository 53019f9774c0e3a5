"""Networks that hear sound piece by piece: what they compute is that of the whole, once, and what they hold does not grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from tiny_transformers import checkpoint, recognisers
from tiny_transformers.live import KYUTAI, VOXTRAL, tekken
from tiny_transformers.tiny_whisper import tone
from tiny_transformers.written import LANGUAGE

from omni_core.api import ConfigError
from omni_transformers.checkpoints import read
from omni_transformers.recognise.live import Network, Sound, Stream
from omni_transformers.recognise.live_frames import FrameByFrame
from omni_transformers.recognise.live_networks import NETWORKS
from omni_transformers.recognise.live_parts import Together
from omni_transformers.recognise.live_transducer import StreamingTransducer
from omni_transformers.recognise.tekken import Streaming, Tekken

assert recognisers
NEMOTRON = "NemotronAsrStreamingForRNNT"
NAMES = [pytest.param(each, marks=[] if each in (NEMOTRON, VOXTRAL) else [pytest.mark.full]) for each in NETWORKS]
HEARD = {KYUTAI: "codec_model.encoder.encoder_seanet", VOXTRAL: "model.audio_tower.embedder"}
"""The first module that hears sound, of those that are no transducers."""


def network(name: str) -> Any:
    return NETWORKS[name](read(str(checkpoint(name))), "cpu", "float32", 4)


def begun(found: Network[Any], name: str) -> Stream:
    stream: Stream = found.begin({"language": LANGUAGE[name]} if name in LANGUAGE else {})
    return stream


@torch.inference_mode()
def hear(found: Network[Any], stream: Stream) -> int:
    """Hear what is there; return how many pieces that are."""
    pieces = 0
    while found.next(stream) is not None:
        assert isinstance(found.hear([stream])[0], list)
        pieces += 1
    return pieces


@pytest.mark.parametrize("name", [NEMOTRON, pytest.param("Nemotron3_5AsrForRNNT", marks=pytest.mark.full)])
@pytest.mark.parametrize(("ahead", "window"), [(13, 71), (0, 71), (3, 12), (1, 6)])
@torch.inference_mode()
def test_frames_are_those_of_the_whole_sound(name: str, ahead: int, window: int) -> None:
    model = network(name)._model  # shared: its settings are those of the test
    config, before = model.encoder.config, model.encoder.config.sliding_window
    try:
        config.sliding_window = model.config.encoder_config.sliding_window = window
        found = network(name)
        found._ahead = ahead
        for count in (1, 160, 161, 1000, 16_800, 17_920, 70_123, 70_200):
            samples, stream = tone(count / 16_000, 1), begun(found, name)
            stream.sound.add(samples)
            stream.sound.ended, stream.sound.is_recording = True, count % 2 > 0
            parts = []
            while (piece := found.next(stream)) is not None:
                parts.append(found._encoded([stream], piece))
                stream.mel += piece.count
                stream.seen += parts[-1].shape[1]
                stream.is_over = piece.is_last
            language = {"language": LANGUAGE[name]} if name in LANGUAGE else {}
            inputs = found._processor(audio=samples, sampling_rate=16_000, **language)
            whole = model.get_audio_features(**{**inputs, "num_lookahead_tokens": ahead})
            expected = whole.pooler_output[:, : int(whole.attention_mask.sum())]
            torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-3, atol=1e-3)
    finally:
        config.sliding_window = model.config.encoder_config.sliding_window = before


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_computed_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, positions, heard = network(name), dict[int, int](), list[int]()
    own = Together.run

    def run(together: Together, names: Any, given: Any) -> Any:
        count = sum(next(iter(each.values())).shape[1] for each in given)
        positions[id(together)] = positions.get(id(together), 0) + count
        return own(together, names, given)

    monkeypatch.setattr(Together, "run", run)
    is_framed = isinstance(found, FrameByFrame)
    model = found.model if is_framed else found._model
    first = model.get_submodule(HEARD.get(name, "encoder.subsampling"))
    hook = first.register_forward_pre_hook(lambda module, given: heard.append(given[0].shape[-1 if is_framed else 1]))
    stream, samples = begun(found, name), tone(4.0, 1)
    pieces = 0
    for each in np.split(samples, [1, 700, 5000, 5001, 30_000, 31_000]):
        stream.sound.add(each)
        pieces += hear(found, stream)
    assert pieces > 2
    stream.sound.ended = True
    pieces += hear(found, stream)
    hook.remove()
    if not is_framed:
        assert sum(heard) == len(samples) // 160
        return
    written, listened = positions[id(found._written)], positions[id(found._heard)]
    assert pieces == found.count(len(samples)) == len(stream.choice.output_ids)  # type: ignore[attr-defined]
    if name == KYUTAI:
        assert (written, listened, sum(heard)) == (pieces, 2 * (pieces - 1), 1920 * (pieces - 1))
    else:
        assert (written, listened, sum(heard)) == tuple(each * (len(found._prompt) + pieces - 1) for each in (1, 4, 8))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_stream_holds_does_not_grow(name: str) -> None:
    found = network(name)
    stream, held = begun(found, name), list[int]()
    for number in range(48):
        stream.sound.add(np.resize(tone(0.4, number), round(0.4 * found.rate)))
        hear(found, stream)
        held.append(size(found, stream))
    assert max(held[32:]) <= max(held[:32])
    found.end(stream)
    for each in getattr(found, "_transformers", ()):
        assert each._sequences.cache.pool.free == each._sequences.cache.pool.total


def size(found: Network[Any], stream: Any) -> int:
    """Return what a stream holds: numbers, and positions of a cache."""
    blocks = 0
    if isinstance(found, FrameByFrame):
        for each, name in zip(found._transformers, stream.sequences, strict=True):
            cache = each._sequences.cache
            blocks += 1000 * len(cache.blocks(name)) if cache.holds(name) else 0
    else:
        assert isinstance(found, StreamingTransducer)
        blocks += sum(keys.numel() + values.numel() for keys, values in stream.attended)
    ends = sum(each.numel() for each in stream.ends.values())
    return blocks + ends + sum(map(len, stream.sound._kept))


def test_a_stream_without_a_likeliest_token_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(VOXTRAL)
    streams = [begun(found, VOXTRAL) for _ in range(2)]
    for each in streams:
        each.sound.add(tone(1.0, 1))
    own = found.written

    def written(streams: Any, heard: Any) -> Any:
        first, second = own(streams, heard)
        return [torch.full_like(first, torch.nan), second]

    monkeypatch.setattr(found, "written", written)
    with torch.inference_mode():
        failed, heard = found.hear(streams)
    assert isinstance(failed, FloatingPointError)
    assert [each.id for each in heard] == streams[1].choice.output_ids  # type: ignore[attr-defined]
    assert len(heard) == 1


def test_the_end_of_a_sound_is_kept() -> None:
    sound, whole = Sound(), np.arange(1, 101, dtype=np.float32)
    for each in np.split(whole, [0, 1, 10, 60]):
        sound.add(each)
    assert sound.count == 100
    assert sound.cut(-3, 2, -3).tolist() == [0, 0, 0, 1, 2]
    assert sound.cut(-5, -2, -5).tolist() == [0, 0, 0]
    assert sound.cut(20, 70, 60).tolist() == whole[20:70].tolist()
    assert sum(map(len, sound._kept)) == 40
    assert sound.cut(98, 103, 98).tolist() == [99, 100, 0, 0, 0]
    sound.close()
    sound.add(whole)
    assert (sound.count, sound._kept) == (200, [])


def test_a_text_that_has_ended_hears_no_further() -> None:
    found = network(VOXTRAL)
    stream, samples = begun(found, VOXTRAL), tone(2.0, 1)
    stream.sound.add(samples)
    hear(found, stream)
    ids = stream.choice.output_ids  # type: ignore[attr-defined]
    stopped: Any = found.begin({})
    stopped.choice.sampling = evolve(stopped.choice.sampling, stop_ids=frozenset({ids[4]}))
    stopped.sound.add(samples)
    assert hear(found, stopped) == ids.index(ids[4]) + 1
    assert (stopped.choice.output_ids, stopped.sound._kept) == (ids[: ids.index(ids[4]) + 1], [])


def test_settings_of_voxtral_are_those_of_its_own_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(tekken(128, 32)))
    found = Tekken(tmp_path)
    assert found.streaming == Streaming(samples=1280, before=32, delay=6, behind=17)  # by mistral-common 1.13
    assert found.prompt == [1, *[32] * 38]
    assert found.decode([1, 41, 32, 92, 93, 40, 2]) == " a éa"
    assert found.decode([92, 32, 93]) == " ��", "as mistral-common: no character goes on behind a special token"


def test_a_checkpoint_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tekken\.json, which its text and sound need"):
        Tekken(tmp_path)
    told = tekken(128, 32)
    del told["audio"]["transcription_delay_ms"]
    (tmp_path / "tekken.json").write_text(json.dumps(told))
    with pytest.raises(
        ConfigError, match="not the tokenizer of sound that streams: KeyError: 'transcription_delay_ms'"
    ):
        Tekken(tmp_path)
