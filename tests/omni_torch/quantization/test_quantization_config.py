"""Descriptions of quantised layers: options of single layers, and every place that has one. Tensors of the file hold; errors say how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_checkpoints import write_quantized
from safetensors.torch import load_file, save_file

from omni_core.errors import ConfigError
from omni_torch.operations.few_rows import Groups, widened
from omni_torch.quantization.quantized_checkpoints import open_checkpoint

NAMES = [f"thinker.layers.{number}.{part}_proj" for number in (0, 1) for part in ("up", "down")]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    save_file(
        {f"{name}.weight": torch.randn(24, 256, generator=generator) for name in NAMES}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text("{}")
    return folder


def mixed(
    source: Path, target: Path, one: dict[str, Any], others: dict[str, Any], **more: Any
) -> dict[str, torch.Tensor]:
    """Write the layers of ``down_proj`` with the options ``one``, and all with ``others``; return the values that the formats define."""
    write_quantized(source, target, "weight", plain=target / "plain", **others)
    write_quantized(source, target / "one", "weight", plain=target / "one plain", **one)
    stored, exact = load_file(target / "model.safetensors"), load_file(target / "plain" / "model.safetensors")
    for name in [each for each in stored if "down_proj" in each]:
        del stored[name]
    for name, tensor in load_file(target / "one" / "model.safetensors").items():
        if "down_proj" in name:
            stored[name] = tensor
    exact |= {
        name: each
        for name, each in load_file(target / "one plain" / "model.safetensors").items()
        if "down_proj" in name
    }
    save_file(stored, target / "model.safetensors")
    describe(target, **more)
    return exact


def describe(folder: Path, **more: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= more
    (folder / "config.json").write_text(json.dumps(config))


def check(folder: Path, exact: dict[str, torch.Tensor]) -> None:
    checkpoint = open_checkpoint(folder)
    names = [f"{name}.weight" for name in NAMES]
    for name, tensor in checkpoint.read(names).items():
        assert torch.equal(tensor, exact[name]), name
        if checkpoint.narrow([name]) is None:
            continue
        layer = name.removesuffix(".weight")
        kept = checkpoint.read([f"{layer}._weight", f"{layer}._scales"])
        torch.testing.assert_close(
            widened(kept[f"{layer}._weight"], kept[f"{layer}._scales"], torch.float32), tensor, rtol=2**-7, atol=0
        )


BASE: dict[str, Any] = {"group": 32}

PACKED: dict[str, Any] = {
    "g": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 32}}
}

OVERRIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gptq, zero points": ({"symmetric": False}, {"dynamic": {r"+:.*down_proj": {"sym": False}}}),
    "gptq, zero points that it does not mention": ({"symmetric": False}, {}),
    "gptq, no sym at all": ({"symmetric": False}, {"sym": None}),
    "gptq, bits and group": ({"bits": 8, "group": 64}, {"dynamic": {r".*\.down_proj$": {"bits": 8, "group_size": 64}}}),
    "gptq, the first rule holds": (
        {"group": 128}, {"dynamic": {"-:.*norm": {}, r"+:thinker\..*down": {"group_size": 128}, ".*": {"group_size": 32}}},
    ),
    "gptq, version 2": ({"symmetric": False, "version": 2}, {"checkpoint_format": "gptq_v2"}),
    "auto-round, zero points": (
        {"symmetric": False}, {"quant_method": "auto-round", "extra_config": {".*down_proj": {"sym": False}}},
    ),
    "auto-round, by name": (
        {"bits": 8, "symmetric": False},
        {
            "quant_method": "auto-round",
            "extra_config": {name: {"bits": 8, "sym": False} for name in NAMES if "down" in name} | {"lm_head": {"bits": 16}},
        },
    ),
    "auto-round, other groups": (
        {"group": -1}, {"quant_method": "auto-round", "extra_config": {"down": {"bits": 8}, "down_pro[j]": {"group_size": -1}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERRIDES)
def test_single_layers_have_options_of_their_own(source: Path, tmp_path: Path, name: str) -> None:
    one, described = OVERRIDES[name]
    check(tmp_path / "made", mixed(source, tmp_path / "made", BASE | one, BASE, **described))


def test_single_layers_of_awq_and_llm_compressor(source: Path, tmp_path: Path) -> None:
    awq = {"method": "awq", "group": 32}
    packing = {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "sym": True, "zero_point": None}
    check(tmp_path / "awq", mixed(source, tmp_path / "awq", {**awq, "symmetric": False}, awq, **packing))
    packed = {"method": "compressed-tensors", "group": 32}
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    eight = {**weights, "num_bits": 8, "symmetric": False, "group_size": 64}
    groups = {
        "group_0": {"targets": ["Linear"], "weights": weights},
        "group_1": {"targets": [r"re:.*layers\.0\.down_proj$", NAMES[3]], "weights": eight, "format": "pack-quantized"},
    }
    one = {**packed, "bits": 8, "symmetric": False, "group": 64}
    check(tmp_path / "packed", mixed(source, tmp_path / "packed", one, packed, config_groups=groups))


def test_layers_that_kernels_cannot_keep_together_become_floats(source: Path, tmp_path: Path) -> None:
    mixed(source, tmp_path / "made", {**BASE, "symmetric": False}, BASE)
    checkpoint = open_checkpoint(tmp_path / "made")
    up, down = ([f"{name}.weight" for name in NAMES if part in name] for part in ("up", "down"))
    assert checkpoint.narrow(up) == Groups(4)
    assert checkpoint.narrow(down) == Groups(4, zero_points=True)
    assert checkpoint.narrow([*up, *down]) is None


def test_zero_points_of_a_symmetric_file_are_half_in_either_version(source: Path, tmp_path: Path) -> None:
    for version in (1, 2):
        exact = mixed(source, tmp_path / f"{version}", {**BASE, "version": 3 - version}, {**BASE, "version": version})
        check(tmp_path / f"{version}", exact)
        assert open_checkpoint(tmp_path / f"{version}").narrow([f"{name}.weight" for name in NAMES]) == Groups(4)


def test_packed_layers_beside_layers_of_8_bits_with_scales(source: Path, tmp_path: Path) -> None:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    scaled = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    groups = {
        "group_0": {"targets": ["re:.*up_proj"], "weights": weights, "format": "pack-quantized"},
        "group_1": {"targets": ["re:.*down_proj"], "weights": scaled, "format": "int-quantized"},
    }
    target = tmp_path / "made"
    exact = mixed(
        source,
        target,
        BASE,
        {"method": "compressed-tensors", "group": 32},
        format="mixed-precision",
        config_groups=groups,
    )
    stored = {name: each for name, each in load_file(target / "model.safetensors").items() if "down_proj" not in name}
    for name in [each for each in NAMES if "down" in each]:
        stored[f"{name}.weight"], stored[f"{name}.weight_scale"] = (
            torch.full((24, 256), 3, dtype=torch.int8),
            torch.full((24, 1), 0.5),
        )
        exact[f"{name}.weight"] = torch.full((24, 256), 1.5)
    save_file(stored, target / "model.safetensors")
    check(target, exact)


@pytest.mark.parametrize("place", [("thinker_config",), ("thinker_config", "text_config"), ("text_config",), None])
def test_every_place_is_found(source: Path, tmp_path: Path, place: tuple[str, ...] | None) -> None:
    target = tmp_path / "made"
    section = write_quantized(source, target, "weight", group=32, symmetric=False, plain=target / "plain")
    config: dict[str, Any] = {}
    if place is None:
        (target / "quantize_config.json").write_text(
            json.dumps({key: section[key] for key in section if key != "quant_method"})
        )
    else:
        rule = (
            r"layers\." if place[0] == "thinker_config" else r"thinker\.layers\."
        )  # names in a section begin with those in it
        described = {**section, "group_size": 64, "dynamic": {rule: {"group_size": 32}}}
        inner: dict[str, Any] = {"quantization_config": described}
        for name in reversed(place):
            inner = {name: inner}
        config = inner
    (target / "config.json").write_text(json.dumps(config))
    check(target, load_file(target / "plain" / "model.safetensors"))


def test_a_quantised_checkpoint_that_does_not_say_how_is_named(source: Path, tmp_path: Path) -> None:
    for method in ("gptq", "awq", "compressed-tensors"):
        target = tmp_path / method
        write_quantized(source, target, "weight", method=method, group=32)
        (target / "config.json").write_text("{}")
        with pytest.raises(
            ConfigError, match=r"lacks the tensor '.*', but has its .*: it is quantised, in a way that config.json"
        ):
            open_checkpoint(target).read([f"{NAMES[0]}.weight"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dynamic": []}, None),
        ({"dynamic": [1]}, r"dynamic is \[1\], which cannot be read; there are: an object"),
        ({"dynamic": {"+:.*": 3}}, r"dynamic is"),
        ({"dynamic": {"+:(": {}}}, r"dynamic is '\+:\(', .* regular expressions"),
        ({"dynamic": {".*": {"bits": 3}}}, r"bits is 3"),
        ({"dynamic": {".*": {"group_size": "x"}}}, r"group_size is 'x'"),
        ({"group_size": True}, r"group_size is True"),
        ({"bits": 4.0}, r"bits is 4.0"),
        ({"bits": [4]}, r"bits is \[4\]"),
        ({"is_marlin_format": True}, r"checkpoint_format is"),
        ({"quant_method": "auto-round", "extra_config": {"a": 1}}, r"extra_config is"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, r"config_groups is None"),
        *(
            ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": PACKED, **more}, message)
            for more, message in (
                ({"sparsity_config": {"format": "sparse-24-bitmask"}}, r"sparsity_config\.format is 'sparse-24-bitmask'"),
                ({"transform_config": {"R1": {}}}, r"transform_config is"),
            )
        ),
        *(
            ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": group}}, message)
            for group, message in (
                ({"targets": ["Linear"]}, r"config_groups\.g\.weights is None"),
                ({"targets": ["Linear"], "weights": {"num_bits": 3}}, r"num_bits 4 or 8"),
                ({"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}, r"weights\.type is 'float'"),
                ({"targets": "Linear", "weights": {"num_bits": 4}}, r"targets is 'Linear'"),
                ({"targets": ["re:("], "weights": {"num_bits": 4}}, r"targets is 're:\('"),
                ({"targets": ["L"], "weights": {"num_bits": 4, "strategy": "group"}}, r"weights\.group_size is None"),
                ({"targets": ["L"], "weights": {"num_bits": 4, "strategy": "block"}}, r"weights\.strategy is 'block'"),
            )
        ),
    ],
)  # fmt: skip
def test_values_of_another_type_are_named(
    source: Path, tmp_path: Path, changed: dict[str, Any], message: str | None
) -> None:
    write_quantized(source, tmp_path / "made", "weight", group=32)
    describe(tmp_path / "made", **changed)
    if message is None:
        open_checkpoint(tmp_path / "made")
        return
    with pytest.raises(ConfigError, match=message) as raised:
        open_checkpoint(tmp_path / "made")
    assert "config.json" in str(raised.value)


def test_layers_of_no_group_are_named(source: Path, tmp_path: Path) -> None:
    write_quantized(source, tmp_path / "made", "weight", method="compressed-tensors", group=32)
    groups = {
        f"g{bits}": {"targets": [f"re:.*{part}"], "weights": {**PACKED["g"]["weights"], "num_bits": bits}}
        for part, bits in (("x", 4), ("q", 8))
    }
    describe(tmp_path / "made", config_groups=groups)
    with pytest.raises(ConfigError, match=r"quantization_config has no group of layers for 'thinker\.layers\..*proj'"):
        open_checkpoint(tmp_path / "made")


def test_sections_that_differ_are_refused(source: Path, tmp_path: Path) -> None:
    section = write_quantized(source, tmp_path / "made", "weight", group=32)
    config = {"quantization_config": section, "thinker_config": {"quantization_config": {**section, "group_size": 64}}}
    (tmp_path / "made" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"quantization_config and thinker_config\.quantization_config differ"):
        open_checkpoint(tmp_path / "made")


@pytest.mark.parametrize(
    ("method", "part", "change", "message"),
    [
        ("gptq", "qzeros", lambda each: each.float(), r"qzeros' is torch.float32 .* asks for int32 \[8, 3\]"),
        ("gptq", "g_idx", lambda each: each - 1, r"g_idx' .* of groups from 0 to 7"),
        ("gptq", "scales", lambda each: each.int(), r"scales' is torch.int32"),
        ("compressed-tensors", "weight_shape", lambda each: each + 1, r"weight_shape' .* asks for \[24, inputs in 32 words of 8\]"),
        ("compressed-tensors", "weight_shape", lambda each: each.float(), r"weight_shape' is torch.float32"),
        ("compressed-tensors", "weight_scale", lambda each: each[:, 1:], r"weight_scale' .* asks for floats \[24, 8\]"),
        ("compressed-tensors", "weight_zero_point", lambda each: each[1:], r"weight_zero_point' .* asks for int32 \[3, 8\]"),
        ("compressed-tensors", "weight_packed", lambda each: each.float(), r"weight_packed' is torch.float32"),
    ],
)  # fmt: skip
def test_tensors_of_another_form_are_named(
    source: Path, tmp_path: Path, method: str, part: str, change: Any, message: str
) -> None:
    target = tmp_path / "made"
    write_quantized(source, target, "weight", method=method, group=32, symmetric=False)
    stored = load_file(target / "model.safetensors")
    stored[f"{NAMES[0]}.{part}"] = change(stored[f"{NAMES[0]}.{part}"]).contiguous()
    save_file(stored, target / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(target).read([f"{NAMES[0]}.weight"])


def test_old_forms_of_llm_compressor_are_read(source: Path, tmp_path: Path) -> None:
    """Zero points that are not packed, and an order of inputs that was reserved and not used."""
    target = tmp_path / "made"
    write_quantized(
        source, target, "weight", method="compressed-tensors", group=32, symmetric=False, plain=target / "plain"
    )
    stored = load_file(target / "model.safetensors")
    for name in NAMES:
        words = stored[f"{name}.weight_zero_point"]
        rows = torch.stack([(words >> shift) & 15 for shift in range(0, 32, 4)], 1).flatten(0, 1)
        stored[f"{name}.weight_zero_point"] = (rows - 8).to(torch.int8)
        stored[f"{name}.weight_g_idx"] = torch.full((256,), -1, dtype=torch.int32)
    save_file(stored, target / "model.safetensors")
    check(target, load_file(target / "plain" / "model.safetensors"))
    assert open_checkpoint(target).narrow([f"{name}.weight" for name in NAMES]) == Groups(4, zero_points=True)
