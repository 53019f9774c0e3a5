"""Rules for devices, ranks, replicas and memory, which depend on each other."""

from __future__ import annotations

from collections.abc import Iterable

from omni_cli.importing.report import Entry, Outcome, Path, holds, note, refuse, take
from omni_cli.importing.values import count, devices, flag, share
from omni_cli.importing.vllm_omni.context import Place, wrong


def gpus(place: Place) -> Outcome:
    """``devices``: one for each rank of each replica."""
    try:
        numbers, ranks, replicas = devices(place.value), _ranks(place), _replicas(place)
    except ValueError as error:
        return wrong(error, place.value)
    if len(numbers) == 1 and ranks == 1:
        return take((place.at("gpu"), numbers[0]))
    if len(numbers) != ranks * replicas:
        return refuse(
            f"names {len(numbers)} devices, but tensor_parallel_size {ranks} and {replicas} replicas need {ranks * replicas}"
        )
    return take((place.at("gpu"), numbers))


def memory(place: Place) -> Outcome:
    """``gpu_memory_utilization``: a share of the device; several of our stages have equal parts of it."""
    try:
        return take((place.at("gpu_memory"), share(place.value) / len(place.group)))
    except ValueError as error:
        return wrong(error, place.value)


def tensor_parallel(place: Place) -> Outcome:
    """``tensor_parallel_size``: as many devices, of a stage that can be split."""
    try:
        ranks = count(place.value)
    except ValueError as error:
        return wrong(error, place.value)
    if ranks > 1 and not place.accepts("tp_rank"):
        return refuse(f"{place.stage} cannot be split; write 1 and one device, or use num_replicas")
    if ranks > 1 and place.effective("devices") is None:
        return refuse(f"needs `devices` with {ranks} device numbers beside it")
    if ranks == 1 and place.setting.platform is None:
        return holds("one rank")
    return take((place.at("tp_size"), ranks))


def expert_parallel(place: Place) -> Outcome:
    """``enable_expert_parallel``: each rank holds experts whole, of a stage that offers this."""
    try:
        wanted = flag(place.value)
    except ValueError as error:
        return wrong(error, place.value)
    if not wanted and (place.setting.platform is None or not place.accepts("expert_parallel")):
        return holds("ranks split every layer, by tp_size")
    if not place.accepts("tp_rank"):
        return holds(f"{place.stage}: one rank holds the whole model")
    if not place.accepts("expert_parallel"):
        return note(f"{place.stage}: ranks split every layer, by tp_size")
    return take((place.at("factory_args", "expert_parallel"), wanted))


def replicas(place: Place) -> Outcome:
    """``num_replicas``: processes that run the stage."""
    try:
        number = count(place.value)
    except ValueError as error:
        return wrong(error, place.value)
    return take((place.at("replicas"), number)) if number > 1 else holds("one replica")


def data_parallel(place: Place) -> Outcome:
    """``data_parallel_size``: replicas here, if ``num_replicas`` does not say how many."""
    if place.value != 1 and place.effective("num_replicas") is not None:
        return refuse("write the product of data_parallel_size and num_replicas as num_replicas")
    return replicas(place)


def _ranks(place: Place) -> int:
    return count(place.effective("tensor_parallel_size", 1))


def _replicas(place: Place) -> int:
    number = place.effective("num_replicas")
    return count(place.effective("data_parallel_size", 1) if number is None else number)


def overfull(entries: Iterable[Entry]) -> dict[Path, str]:
    """Return the paths of shares of memory that do not fit their device beside those before them, with what is wrong."""
    written = {path: value for entry in entries for path, value in entry.outcome.writes}
    found: dict[Path, str] = {}
    for platform in dict.fromkeys(path[:2] if path[0] == "platforms" else () for path in written):
        there = {path: value for path, value in written.items() if path[0] == "stages"}
        there |= {path[len(platform) :]: value for path, value in written.items() if path[:2] == platform and platform}
        taken: dict[int, list[tuple[str, float]]] = {}
        for path, part in there.items():
            if path[-1] != "gpu_memory" or len(path) != 3:
                continue
            gpu = there.get((*path[:-1], "gpu"), [])  # without one, the pipeline's placement chooses
            for device in gpu if isinstance(gpu, list) else [gpu]:
                before = taken.setdefault(device, [])
                before.append((path[1], part))
                if sum(each for _, each in before) > 1 + 1e-9:
                    parts = " + ".join(f"{name} {each:g}" for name, each in before)
                    origin = (*platform, *path) if (*platform, *path) in written else path
                    where = f" on {platform[1]}" if platform else ""
                    found[origin] = f"device {device}{where} would have to give more than all of its memory: {parts}"
    return found
