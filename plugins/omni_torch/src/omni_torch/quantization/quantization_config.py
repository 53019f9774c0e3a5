"""Reads how a checkpoint's linear layers were quantised into words of 4 or 8 bits: by GPTQ's and AWQ's tools, or by llm-compressor.

The description is ``quantization_config`` of ``config.json`` or of a section in it, or the file that AutoGPTQ writes beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from omni_core.api import ConfigError
from omni_torch.checkpoints.folders import read_json
from omni_torch.checkpoints.headers import TensorInfo, Tensors

FIELD = "quantization_config"

OLDER = "quantize_config.json"
"""The file of AutoGPTQ."""

METHODS = ("fp8", "compressed-tensors")
"""The names of ``quant_method`` that are read here."""

PLAIN_FORMATS = (None, "float-quantized", "int-quantized", "naive-quantized")
"""Values of ``format`` of llm-compressor's files whose weights are not packed into words."""

PACKED = "pack-quantized"
"""The ``format`` of llm-compressor's layers whose values are packed into words."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of eight, that each 4 bits of an AWQ word, an int32, belong to, lowest first."""

Block = tuple[int, int]
"""Outputs and inputs that share a scale."""


@frozen
class Parts:
    """The ends of the names of a layer's tensors: words of values, scales, words of zero points, and the groups of inputs."""

    values: str
    scales: str
    zeros: str
    groups: str | None


GPTQ_PARTS = Parts("qweight", "scales", "qzeros", "g_idx")
AWQ_PARTS = Parts("qweight", "scales", "qzeros", None)
PACKED_PARTS = Parts("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx")


@frozen
class Scheme:
    """The way in which a layer is stored.

    Attributes:
        parts: its tensors, which say which tool wrote it.
        group: inputs that share a scale; -1: all.
        bits: of a value, 4 or 8.
        symmetric: the zero points are meant to be half of the values. The file may have others, which hold.
        offset: what is added to stored zero points.
        reordered: groups need not be adjacent inputs.
    """

    parts: Parts
    group: int
    symmetric: bool
    offset: int = 0
    reordered: bool = False
    bits: int = 4

    @property
    def per_word(self) -> int:
        """Values in an int32."""
        return 32 // self.bits

    @property
    def order(self) -> tuple[int, ...]:
        """The column that each value of a word of zero points, or of AWQ, belongs to, lowest bits first."""
        return AWQ_ORDER if self.parts == AWQ_PARTS else tuple(range(self.per_word))


@frozen
class ScaledScheme:
    """The way in which a checkpoint's layers are stored. ``block``: of layers whose scales are matrices, if there are such layers."""

    block: Block | None


Rule = tuple[Callable[[str], object], Scheme]
"""A layer's name fits if the function returns something true."""


@frozen
class Schemes:
    """The schemes of a checkpoint's layers.

    Attributes:
        base: of layers that no rule fits; ``None``: there is none.
        rules: the first that fits a layer's name holds.
        scaled: of layers that are not packed into words.
        where: the file.
        prefix: what the names in the rules may lack.
    """

    base: Scheme | None
    rules: Sequence[Rule] = ()
    scaled: ScaledScheme = field(factory=lambda: ScaledScheme(None))
    where: str = ""
    prefix: str = ""

    def of(self, layer: str) -> Scheme:
        """Return the scheme of a layer, by its name.

        Raises:
            ConfigError: no group of layers has it.
        """
        names = (layer, layer.removeprefix(self.prefix))
        found = next((scheme for fits, scheme in self.rules if any(map(fits, names))), self.base)
        if found is None:
            raise ConfigError(
                f"{self.where}: {FIELD} has no group of layers for {layer!r}, which is stored in words of a few bits"
            )
        return found


def find_schemes(folder: Path) -> Schemes | None:
    """Return how a checkpoint's layers are quantised; ``None``: its files say nothing about it.

    Raises:
        ConfigError: a file cannot be read, the way of quantisation is not implemented, or two sections say different things.
    """
    config = folder / "config.json"
    found = list(_sections(read_json(config))) if config.exists() else []
    if not found and (folder / OLDER).exists():
        return parse_scheme({"quant_method": "gptq", **read_json(folder / OLDER)}, str(folder / OLDER))
    if not found:
        return None
    places = [".".join((*path, FIELD)) for path, _ in found]
    (path, section), *others = found
    if not isinstance(section, dict):
        raise ConfigError(f"{config}: {places[0]} must be an object, is a {type(section).__name__}")
    if any(each != section for _, each in others):
        raise ConfigError(
            f"{config}: {' and '.join(places)} differ; a checkpoint that is quantised in one way can be read"
        )
    where = ": ".join([str(config), *path])
    method = str(section.get("quant_method")).lower()
    if method == "fp8":
        return Schemes(None, scaled=parse_fp8(section, where), where=where)
    prefix = "".join(f"{each.removesuffix('_config')}." for each in path[:1])
    return (parse_compressed if method in METHODS else parse_scheme)(section, where, prefix)


def unpacked(tensors: Tensors, schemes: Schemes | None) -> Tensors:
    """Return a checkpoint's tensors with the words of its layers under the names of their weights.

    Raises:
        ConfigError: as :meth:`Schemes.of`.
    """
    if schemes is None:
        return tensors
    parts = {name: name.rpartition(".") for name in tensors}
    stored = (GPTQ_PARTS.values, PACKED_PARTS.values)
    layers = {layer: schemes.of(layer) for layer, _, part in parts.values() if part in stored}
    found = dict[str, TensorInfo]()
    for name, (layer, _, part) in parts.items():
        if layer not in layers or part == "bias":
            found[name] = tensors[name]
        elif part in stored:
            found[f"{layer}.weight"] = evolve(tensors[name], per_word=layers[layer].per_word)
        else:
            found[name] = evolve(tensors[name], per_word=0)
    return found


def _sections(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the descriptions in a config and in the sections of its parts, with their places."""
    if values.get(FIELD) is not None:
        yield path, values[FIELD]
    for name, value in values.items():
        if name.endswith("_config") and name != FIELD and isinstance(value, dict) and len(path) < 2:
            yield from _sections(value, (*path, name))


def parse_scheme(section: dict[str, Any], where: str, prefix: str = "") -> Schemes:
    """Read the description of GPTQ's, AWQ's or AutoRound's tools.

    Raises:
        ConfigError: the method or one of its options is not implemented; the message names the file, the field and what is.
    """
    rounds = str(section.get("quant_method")).lower() == "auto-round"
    key = "extra_config" if rounds else "dynamic"
    given = section.get(key) or {}
    if not isinstance(given, dict) or not all(isinstance(each, dict | None) for each in given.values()):
        raise refused(where, key, given, "an object with the options of layers by name")
    exact, patterns = list[Rule](), list[Rule]()
    for name, values in given.items():
        values = values or {}
        if name.startswith("-:") or (rounds and type(values.get("bits")) is int and values["bits"] >= 16):
            continue  # not quantised
        scheme = _scheme({**section, **values}, where)
        if rounds and not set(name) & set(r"*+?^$()[]{}|\\"):
            exact.append((name.__eq__, scheme))
        else:
            pattern = _compiled(name, "+:", where, key)
            patterns.append((pattern.search if rounds else pattern.match, scheme))
    return Schemes(_scheme(section, where), [*exact, *patterns], where=where, prefix=prefix)


def _compiled(given: str, mark: str, where: str, field: str) -> re.Pattern[str]:
    try:
        return re.compile(given.removeprefix(mark))
    except (re.error, RecursionError, OverflowError) as error:
        raise refused(where, field, given, f"regular expressions ({error})") from None


def _scheme(section: dict[str, Any], where: str) -> Scheme:
    def refuse(name: str, allowed: str) -> ConfigError:
        return refused(where, name, section.get(name), allowed)

    method = str(section.get("quant_method")).lower()
    packing = str(section.get("packing_format", "auto_round:auto_gptq")).lower() if method == "auto-round" else method
    kind = packing.rpartition(":")[2].removeprefix("auto_")
    if method not in ("gptq", "awq", "auto-round"):
        advice = f"gptq, awq, auto-round, {', '.join(METHODS)}. Use a checkpoint in bfloat16 and the stage's `quantization` instead"
        raise refuse("quant_method", advice)
    if kind not in ("gptq", "awq"):
        raise refuse("packing_format", "auto_round:auto_gptq, auto_round:auto_awq")
    bits = section.get("bits")
    if type(bits) is not int or bits not in ((4,) if kind == "awq" else (4, 8)):
        raise refuse("bits", "4" if kind == "awq" else "4, 8")
    group = section.get("group_size", 128)
    if type(group) is not int or not (group == -1 or group > 0):
        raise refuse("group_size", "-1 or a number of inputs, such as 128")
    if kind == "awq":
        if str(section.get("version", "gemm")).lower() != "gemm":
            raise refuse("version", "gemm")
        return Scheme(AWQ_PARTS, group, section.get("zero_point", not section.get("sym", False)) is False)
    form = section.get("checkpoint_format", section.get("format", "gptq"))
    if form not in ("gptq", "gptq_v2") or section.get("is_marlin_format"):
        raise refuse("checkpoint_format", "gptq, gptq_v2")
    reordered = section.get("desc_act", False) is True
    return Scheme(GPTQ_PARTS, group, section.get("sym", True) is True, 1 if form == "gptq" else 0, reordered, bits)


def parse_compressed(section: dict[str, Any], where: str, prefix: str = "") -> Schemes:
    """Read llm-compressor's description.

    Raises:
        ConfigError: as :func:`parse_scheme`.
    """
    groups = section.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise refused(where, "config_groups", groups, "an object of groups with `weights`")
    sparsity = section.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format") not in (None, "dense"):
        raise refused(where, "sparsity_config.format", sparsity["format"], "dense")
    if section.get("transform_config"):
        raise refused(where, "transform_config", section["transform_config"], "none, inputs as they are")
    exact, patterns, bases, blocks = list[Rule](), list[Rule](), list[Scheme](), set[Block]()
    for name, group in groups.items():
        group = group if isinstance(group, dict) else {}
        form, weights, at = group.get("format") or section.get("format"), group.get("weights"), f"config_groups.{name}"
        if form in PLAIN_FORMATS:
            if (block := scaled_block(weights, where, f"{at}.weights")) is not None:
                blocks.add(block)
            continue
        if form != PACKED:
            raise refused(where, "format", form, ", ".join([*filter(None, PLAIN_FORMATS), PACKED]))
        scheme = _packed_scheme(weights, where, f"{at}.weights")
        targets = group.get("targets")
        if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
            raise refused(where, f"{at}.targets", targets, 'a list of names, such as ["Linear"]')
        for target in targets:
            if target.startswith("re:"):
                patterns.append((_compiled(target, "re:", where, f"{at}.targets").match, scheme))
                continue
            exact.append((target.__eq__, scheme))
            bases += [] if "." in target else [scheme]  # the name of a class
    if len(blocks) > 1:
        raise refused(where, "config_groups", sorted(map(str, blocks)), "blocks of one shape")
    schemes = {scheme for _, scheme in (*exact, *patterns)}
    base = bases[0] if bases else schemes.pop() if len(schemes) == 1 else None
    return Schemes(base, [*exact, *patterns], ScaledScheme(blocks.pop() if blocks else None), where, prefix)


def _packed_scheme(weights: Any, where: str, field: str) -> Scheme:
    if not isinstance(weights, dict) or type(weights.get("num_bits")) is not int or weights["num_bits"] not in (4, 8):
        raise refused(where, field, weights, "num_bits 4 or 8, of type int")
    if weights.get("type", "int") != "int":
        raise refused(where, f"{field}.type", weights["type"], "int")
    strategy, group = weights.get("strategy"), weights.get("group_size")
    if strategy is None:
        strategy = "tensor" if group is None else "channel" if group == -1 else "group"
    if strategy not in ("tensor", "channel", "group"):
        raise refused(where, f"{field}.strategy", strategy, "group, channel, tensor")
    if strategy != "group":
        group = -1
    elif type(group) is not int or group <= 0:
        raise refused(where, f"{field}.group_size", group, "a number of inputs, such as 128")
    symmetric = weights.get("symmetric", True) is not False
    return Scheme(PACKED_PARTS, group, symmetric, reordered=True, bits=weights["num_bits"])


def parse_fp8(section: dict[str, Any], where: str) -> ScaledScheme:
    """Read ``quantization_config`` of the method ``fp8``.

    Raises:
        ConfigError: an option is not implemented; the message names the file, the field and what is.
    """
    if str(section.get("fmt", "e4m3")).lower() not in ("e4m3", "float8_e4m3fn"):
        raise refused(where, "fmt", section.get("fmt"), "e4m3")
    return ScaledScheme(_block(section.get("weight_block_size"), where, "weight_block_size"))


def scaled_block(weights: Any, where: str, field: str) -> Block | None:
    """Return the blocks of a group of llm-compressor's in one of :data:`PLAIN_FORMATS`, if it has some.

    Args:
        weights: the group's description of them.
        where: the file.
        field: the place of ``weights`` in it.

    Raises:
        ConfigError: as :func:`parse_fp8`.
    """
    if not isinstance(weights, dict) or weights.get("num_bits") != 8:
        advice = "num_bits 8, of type float or int. Use a checkpoint in bfloat16 and the stage's `quantization` instead"
        raise refused(where, field, weights, advice)
    if weights.get("symmetric", True) is not True:
        raise refused(where, f"{field}.symmetric", weights["symmetric"], "true")
    strategy = weights.get("strategy", "tensor")
    if strategy not in ("tensor", "channel", "block"):
        raise refused(where, f"{field}.strategy", strategy, "tensor, channel, block")
    return _block(weights.get("block_structure"), where, f"{field}.block_structure") if strategy == "block" else None


def _block(given: Any, where: str, field: str) -> Block | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2 or not all(type(each) is int and each > 0 for each in given):
        raise refused(where, field, given, "a pair of positive numbers, such as [128, 128]")
    return given[0], given[1]


def refused(where: str, field: str, found: Any, allowed: str) -> ConfigError:
    """Return the error of an option of ``quantization_config`` in the file ``where``. ``allowed``: what it may be."""
    return ConfigError(f"{where}: quantization_config.{field} is {found!r}, which cannot be read; there are: {allowed}")
