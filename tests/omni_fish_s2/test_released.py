"""The released checkpoint's names and shapes: every one is read by our networks, and none is missing.

The lists are those of the reference's networks at the released dimensions (``golden/make_golden.py``). Its key names on disk are
the released ones put back: ``text_model.model.`` and ``audio_decoder.`` before the names of its modules.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fish_released import NAMES, RELEASED, folded, on_disk

from omni_core.errors import ConfigError
from omni_fish_s2.checkpoint import JOINED
from omni_fish_s2.codec.config import CodecConfig
from omni_fish_s2.codec.networks import CodecDecoder, CodecEncoder
from omni_fish_s2.codec.weights import CodecFile, load_codec
from omni_fish_s2.config import parse_config
from omni_fish_s2.slow import PREFIXES, SlowDecoder
from omni_torch.checkpoints.weights import prefixed


def test_every_tensor_of_the_decoders_is_accounted_for() -> None:
    with torch.device("meta"):
        model = SlowDecoder(parse_config(RELEASED))
    released = {on_disk(name): tuple(shape) for name, shape in NAMES["decoders"].items()}
    read = {}
    for name, tensor in model.state_dict().items():
        source = prefixed(name, PREFIXES)
        joined = next((each for each in JOINED if source.endswith(each)), None)
        if joined is None or source in released:
            read[source] = tuple(tensor.shape)
        else:
            parts = [source.removesuffix(joined) + part for part in JOINED[joined]]
            assert sum(released[part][0] for part in parts) == tensor.shape[0], name
            assert all(released[part][1:] == tensor.shape[1:] for part in parts), name
            read |= {part: released[part] for part in parts}
    assert read == released
    assert sum(tensor.numel() for tensor in model.state_dict().values()) == pytest.approx(4.56e9, rel=0.01)


def test_every_tensor_of_the_codec_is_accounted_for() -> None:
    with torch.device("meta"):
        ours = {**CodecEncoder(CodecConfig()).state_dict(), **CodecDecoder(CodecConfig()).state_dict()}
    assert {name: tuple(tensor.shape) for name, tensor in ours.items()} == folded(NAMES["codec"])


@pytest.mark.parametrize("wrapped", ["plain", "state_dict", "generator"])
def test_the_released_codec_tells_its_dimensions(wrapped: str, tmp_path: Path) -> None:
    """Includes a file that a training run has wrapped."""
    tensors = {name: torch.empty(1).expand(shape) for name, shape in NAMES["codec"].items()}
    if wrapped == "generator":
        tensors = {
            **{f"generator.{name}": tensor for name, tensor in tensors.items()},
            "discriminator.x": torch.empty(1),
        }
    torch.save({"state_dict": tensors} if wrapped == "state_dict" else tensors, tmp_path / "codec.pth")
    file = CodecFile(tmp_path / "codec.pth")
    assert file.config == CodecConfig()
    assert file.config.samples_per_frame == 2048


def test_errors_in_a_codec_file_are_named(tiny: dict[str, Path], tmp_path: Path) -> None:
    tensors = torch.load(tiny["a"] / "codec.pth", weights_only=True)
    path = tmp_path / "codec.pth"

    def load() -> None:
        load_codec(CodecDecoder, CodecFile(path), dtype=torch.float32, device="cpu")

    with pytest.raises(ConfigError, match=r"codec\.pth is missing"):
        load()
    name = "quantizer.post_module.layers.1.feed_forward.w2.weight"
    torch.save({each: tensor for each, tensor in tensors.items() if each != name}, path)
    with pytest.raises(ConfigError, match=rf"lacks the tensor '{name}'"):
        load()
    torch.save({**tensors, name: tensors[name][:-1]}, path)
    with pytest.raises(ConfigError, match=rf"'{name}' .* has shape \(63, 96\), the others imply \(64, 96\)"):
        load()
    path.write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="cannot be read as a file of tensors"):
        load()
    torch.save([1, 2], path)
    with pytest.raises(ConfigError, match="not contain a dictionary of tensors"):
        load()


class _Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("executed",)


def test_nothing_in_a_codec_file_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": _Harmful()}, tmp_path / "codec.pth")
    with pytest.raises(ConfigError, match="cannot be read as a file of tensors"):
        CodecFile(tmp_path / "codec.pth")
    assert "executed" not in capsys.readouterr().out
