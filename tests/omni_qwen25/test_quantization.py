"""Thinker and talker with narrow weights: which layers are narrow, what they compute, and a whole reply."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from qwen25_stages import Stages
from torch import nn

from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest
from omni_qwen25.config import read_config
from omni_qwen25.networks import Talker, Thinker, load_talker, load_thinker
from omni_qwen25.talker import TalkerFeedback, TalkerRunner
from omni_qwen25.thinker import ThinkerRunner
from omni_testing.tiny.qwen25 import write_tiny_checkpoint
from omni_torch.checkpoints import prepared
from omni_torch.operations import few_rows
from omni_torch.operations.few_rows import BFloat16Embedding, BFloat16Linear
from omni_torch.quantization import packed_linear, quantized_linear
from omni_torch.quantization.quantized_linear import QUANTIZATIONS

NAMES = [name for name, each in QUANTIZATIONS.items() if quantized_linear._works(each)]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "bfloat16_lossless"])  # widths are too small for it
def test_projections_are_narrow_and_keep_their_biases(tiny: dict[str, Path], name: str) -> None:
    path = str(tiny["a"])
    config = read_config(path)
    assert config.talker is not None
    with torch.device("meta"):
        described = Thinker(config.thinker), Talker(config.talker)
    pairs: list[tuple[nn.Module, nn.Module]] = [
        (load_thinker(path, config), load_thinker(path, config, quantization=name)),
        (load_talker(path, config.talker), load_talker(path, config.talker, quantization=name)),
    ]
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
    narrow = 0
    for (plain, quantized), model in zip(pairs, described, strict=True):
        widths = {where: each.in_features for where, each in model.named_modules() if isinstance(each, nn.Linear)}
        layers = dict(plain.named_modules())
        for where, layer in quantized.named_modules():
            if type(layer) is QUANTIZATIONS[name].layer:
                narrow += 1
                given = x[:, : widths[where]]
                exact, rounded = layers[where](given), layer(given)
                error = (rounded - exact).norm() / exact.norm()
                assert error < (0.02 if "int4" not in name else 0.15), where
                assert error > 0, where
    assert narrow >= 3 * 2 + 1, "queries, keys and values and the first half of each feed-forward, and the head"


@pytest.mark.skipif("int8_weight_only" not in NAMES, reason="no int8 kernels here")
def test_a_reply_with_narrow_weights(tiny: dict[str, Path]) -> None:
    params = {"thinker": {"max_new_tokens": 5}, "talker": {"max_new_tokens": 6}, "seed": 1}
    asked = OmniRequest({"messages": [{"role": "user", "content": "Hello."}]}, params)
    [reply] = Stages(tiny["b"], quantization="int8_weight_only").run(asked)
    assert len(reply.ids) == 5
    assert len(reply.samples) == 480 * len(reply.codes) > 0


def test_a_checkpoint_in_bfloat16_computes_in_float32_from_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "b", shape="b", dtype="bfloat16")
    params = {"thinker": {"max_new_tokens": 5}, "talker": {"max_new_tokens": 6}, "seed": 1}
    asked = OmniRequest({"messages": [{"role": "user", "content": "Hello."}]}, params)
    [expected] = Stages(folder).run(asked)
    monkeypatch.setattr(few_rows.few_rows_linear, "replaced", lambda device, dtype: True)
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    [reply] = Stages(folder).run(asked)
    assert (reply.ids, reply.codes) == (expected.ids, expected.codes)
    config = read_config(str(folder))
    assert config.talker is not None
    model, talker = load_thinker(str(folder), config), load_talker(str(folder), config.talker)
    kept = [name for name, each in model.named_modules() if isinstance(each, BFloat16Linear)]
    assert len(kept) == sum(isinstance(each, nn.Linear) for each in Thinker(config.thinker).modules())
    monkeypatch.setattr(prepared, "keeps_bfloat16", lambda *given: False)
    wide = load_thinker(str(folder), config), load_talker(str(folder), config.talker)
    for ours, theirs in zip((model, talker), wide, strict=True):
        assert {each.dtype for each in ours.parameters()} == {torch.float32}
        found, widened = ours.model.embed_tokens, theirs.model.embed_tokens
        assert isinstance(found, BFloat16Embedding)
        rows = found(torch.arange(len(widened.weight)))
        assert rows.dtype == torch.float32
        assert torch.equal(rows, widened.weight)


def test_names_that_do_not_exist_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quantization: 'int7' is unknown; there are: int8_weight_only"):
        ThinkerRunner.from_checkpoint(str(tmp_path), quantization="int7")
    with pytest.raises(ConfigError, match="quantization: 'int7' is unknown"):
        TalkerRunner.from_checkpoint(str(tmp_path), TalkerFeedback(), quantization="int7")
