"""Brings the keys of a deploy file into one form, whichever schema they are in, and lays files with ``base_config`` over each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from omni_cli.importing.document import Leaf, read
from omni_core.api import ConfigError

STAGE, TOP, CONNECTOR, EDGE = "stage", "top", "connector", "edge"

DEEP = ("default_sampling_params", "default_pooling_params", "subtalker_sampling_params")
"""Mappings of a stage that vLLM-Omni merges key by key when one file is laid over another. It replaces others as a whole."""

RUNTIME = {"max_batch_size": "max_num_seqs"}
"""Keys of ``runtime`` that are called otherwise today; the others keep their names."""

_NESTED = ("engine_args", "engine_extras")


@frozen
class Setting:
    """One key of the input in a form that both schemas share.

    Attributes:
        scope: ``stage``, ``top``, ``connector`` or ``edge``.
        platform: the section of ``platforms`` that it is in.
        stage: the number of its stage.
        keys: the path below the stage, the connector or the file.
        deep: true for keys that vLLM-Omni merges one by one.
        problem: why it cannot be read.
        overridden: where another file replaces it.
    """

    leaf: Leaf
    scope: str
    keys: tuple[str, ...]
    platform: str | None = None
    stage: int | None = None
    deep: bool = False
    problem: str | None = None
    overridden: str | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.scope, self.platform, self.stage

    @property
    def value(self) -> Any:
        return self.leaf.value


def load(path: Path) -> list[Setting]:
    """Return the settings of a file and of those that it is based on, the innermost first.

    Raises:
        ConfigError: a file cannot be read, or ``base_config`` leads back to itself.
    """
    chain: list[Path] = []
    files: list[list[Setting]] = []
    current: Path | None = path
    named = ""
    while current is not None:
        if any(each.resolve() == current.resolve() for each in chain):
            shown = " -> ".join(map(str, [*chain, current]))
            raise ConfigError(f"{named}: base_config leads back to itself: {shown}")
        if chain and not current.is_file():
            raise ConfigError(f"{named}: base_config: there is no file {current}")
        chain.append(current)
        found = settings(read(current))
        files.insert(0, found)
        base = next((each for each in found if each.scope == TOP and each.keys == ("base_config",)), None)
        current = None
        if base is not None and isinstance(base.value, str) and base.value:
            named, current = base.leaf.where, chain[-1].parent / base.value
    return [each for number, found in enumerate(files) for each in _beneath(found, files[number + 1 :])]


def settings(leaves: list[Leaf]) -> list[Setting]:
    """Return one setting for each leaf of a file."""
    numbers = _numbers(leaves)
    found: list[Setting] = []
    seen: dict[tuple[Any, ...], str] = {}
    for leaf in leaves:
        setting = _setting(leaf, numbers)
        place = (*setting.identity, setting.keys)
        if setting.problem is None and place in seen:
            setting = evolve(setting, problem=f"given twice, here and in {seen[place]}; remove one")
        seen.setdefault(place, f"{leaf.where} ({leaf.name})")
        found.append(setting)
    return found


def _setting(leaf: Leaf, numbers: dict[tuple[Any, ...], int | str]) -> Setting:
    path = leaf.path
    first = str(path[0])
    if first in ("stages", "stage_args"):
        return _of_stage(leaf, 1, None, numbers)
    if first == "platforms":
        return _of_platform(leaf, numbers)
    names = tuple(str(key) for key in path)
    if first == "connectors" and len(path) > 1:
        return Setting(leaf, CONNECTOR, names[1:])
    if first == "edges" and len(path) > 1:
        return Setting(leaf, EDGE, names[1:])
    if first == "runtime" and len(path) > 2 and path[1] == "connectors":
        return Setting(leaf, CONNECTOR, names[2:])
    if first == "runtime" and len(path) > 2 and path[1] == "edges":
        return Setting(leaf, EDGE, (f"runtime {names[2]}", *names[3:]))  # numbered beside those of `edges`
    return Setting(leaf, TOP, names)


def _of_platform(leaf: Leaf, numbers: dict[tuple[Any, ...], int | str]) -> Setting:
    path = leaf.path
    platform = str(path[1]) if len(path) > 1 else None
    if len(path) < 3 and leaf.value not in (None, {}, []):
        problem = "must map names of platforms to sections" if platform is None else "must be a mapping of keys"
        return Setting(leaf, TOP, ("platforms",), platform, problem=problem)
    if len(path) > 3 and path[2] == "stages":
        setting = _of_stage(leaf, 3, platform, numbers)
        if setting.problem is None and path[4:5] == ("runtime",):
            advice = "vllm-omni does not read `runtime` in a section of a platform; write its keys beside stage_id"
            return evolve(setting, problem=advice)
        return setting
    return Setting(leaf, TOP, tuple(str(key) for key in path[2:]) or ("platforms",), platform)


def _of_stage(leaf: Leaf, depth: int, platform: str | None, numbers: dict[tuple[Any, ...], int | str]) -> Setting:
    """Return a setting whose path has the index of a stage at ``depth``."""
    path = leaf.path
    if len(path) < depth + 2 or not isinstance(path[depth], int):
        empty = leaf.value in (None, [], {}) and len(path) == depth
        problem = None if empty else "must be a list of stages, each with a stage_id"
        return Setting(leaf, STAGE, (), platform, problem=problem)
    number = numbers[path[: depth + 1]]
    keys = tuple(str(key) for key in path[depth + 1 :])
    deep = keys[0] in DEEP or keys[0] in _NESTED
    if len(keys) > 1 and keys[0] in _NESTED:
        keys = keys[1:]
    elif len(keys) > 1 and keys[0] == "runtime":
        keys = (RUNTIME.get(keys[1], keys[1]), *keys[2:])
    elif len(keys) > 1 and keys[0] == "tts_args":
        keys = (f"tts_{keys[1]}", *keys[2:])
    if isinstance(number, str):
        return Setting(leaf, STAGE, keys, platform, problem=number)
    return Setting(leaf, STAGE, keys, platform, number, deep)


def _numbers(leaves: list[Leaf]) -> dict[tuple[Any, ...], int | str]:
    """Return the stage_id of each stage of a file by its place, or what is wrong with it."""
    places: dict[tuple[Any, ...], int | str] = {}
    for leaf in leaves:
        path = leaf.path
        depth = 3 if path[0] == "platforms" else 1
        if len(path) > depth + 1 and isinstance(path[depth], int):
            places.setdefault(path[: depth + 1], "its stage has no stage_id")
    used: dict[tuple[Any, ...], int] = {}
    for leaf in leaves:
        place, last = leaf.path[:-1], leaf.path[-1]
        if place not in places or last != "stage_id":
            continue
        number = leaf.value
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            places[place] = f"stage_id must be a whole number from 0 on, is {number!r}"
        elif (*place[:-1], number) in used:
            line = used[*place[:-1], number]
            places[place] = (
                f"a second stage with stage_id {number} (the first: line {line}); vllm-omni drops one of them"
            )
        else:
            used[*place[:-1], number] = leaf.line
            places[place] = number
    return places


def _beneath(own: list[Setting], later: list[list[Setting]]) -> list[Setting]:
    """Return the settings of a file with what the files that are based on it do to them."""
    over = [each for found in later for each in found if each.problem is None]
    return [_under(setting, over) for setting in own]


def _under(setting: Setting, over: list[Setting]) -> Setting:
    if setting.problem is not None or setting.keys in ((), ("stage_id",)):
        return setting
    for other in reversed(over):
        if other.identity != setting.identity:
            continue
        shorter = min(len(other.keys), len(setting.keys))
        same = bool(shorter) and other.keys[:shorter] == setting.keys[:shorter]
        if same or setting.scope == EDGE:
            return evolve(setting, overridden=other.leaf.where)
        whole = setting.scope == STAGE and not setting.deep
        whole = whole or (setting.scope == TOP and setting.keys[0] == "duplex_session")
        if whole and shorter > 1 and other.keys[0] == setting.keys[0]:
            return evolve(
                setting,
                problem=f"lost in vllm-omni: {other.leaf.where} replaces the whole of `{setting.keys[0]}`; repeat this key there, "
                "or remove it here",
            )
    return setting
