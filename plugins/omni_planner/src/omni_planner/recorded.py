"""Recorded loads: a file with the moments and the sizes of requests, replayed against a simulated pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cattrs
from attrs import evolve, frozen

from omni_core.errors import ConfigError, did_you_mean
from omni_planner.profile import CLIENT, PipelineProfile, Sample, Visit
from omni_planner.requests import Arrival


@frozen
class Recorded:
    """One request of a record. A size that is ``None`` is that of a measured request.

    Attributes:
        at: seconds since the record's begin. kind: of the profile's.
        prompt: positions of the prompt. tokens: of the answer's text. sound: seconds of sound in the answer.
    """

    at: float
    kind: str
    prompt: int | None = None
    tokens: int | None = None
    sound: float | None = None


_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


def read_record(path: Path, names: Mapping[str, str], run: int | None = None) -> list[Recorded]:
    """Read a record: JSON objects, one a line, with the fields of :class:`Recorded`; or what ``omni bench serve --json`` wrote.

    Args:
        names: what kinds are called in the file, to the profile's names. run: number of the benchmark's run, from 1.

    Raises:
        ConfigError: it is no record; the message says which line is wrong.
    """
    text = path.read_text()
    try:
        document: Any = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict) and "runs" in document:
        found = _of_benchmark(path, document["runs"], run)
    else:
        found = [_of_line(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not found:
        raise ConfigError(f"{path}: has no request")
    return [evolve(each, kind=names.get(each.kind, each.kind)) for each in sorted(found, key=lambda each: each.at)]


def _of_line(path: Path, number: int, line: str) -> Recorded:
    try:
        made = _CONVERTER.structure(json.loads(line), Recorded)
    except Exception as error:
        reasons = "; ".join(cattrs.transform_error(error, "it")) if not isinstance(error, ValueError) else str(error)
        raise ConfigError(f"{path}:{number}: is no recorded request: {reasons}") from error
    sizes = [made.at, *(each for each in (made.prompt, made.tokens, made.sound) if each is not None)]
    if not all(0 <= each < float("inf") for each in sizes):
        raise ConfigError(f"{path}:{number}: times and sizes must be numbers of at least 0")
    return made


def _of_benchmark(path: Path, runs: Any, run: int | None) -> list[Recorded]:
    try:
        if run is None and len(runs) > 1:
            listed = ", ".join(f"{number} ({each['load']})" for number, each in enumerate(runs, 1))
            raise ConfigError(f"{path}: has several runs: {listed}; choose one by --trace-run")
        if not 1 <= (run or 1) <= len(runs):
            raise ConfigError(f"{path}: there is no run {run}; it has {len(runs)}")
        return [
            Recorded(float(each["begun"]), each["scenario"], None, each["tokens"], each["sound"] or None)
            for each in runs[(run or 1) - 1]["requests"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: is not what `omni bench serve --json` writes: {type(error).__name__}: {error}"
        ) from error


def arrivals_of(record: list[Recorded], profile: PipelineProfile, speed: float = 1.0) -> list[Arrival]:
    """Return the requests of a record, each a measured one of its kind, in the recorded size.

    Args:
        speed: 2 lets them come in half the time.

    Raises:
        ConfigError: the profile has no such kind of request.
    """
    turns: dict[str, int] = {}
    arrivals: list[Arrival] = []
    begin = record[0].at
    for each in record:
        if each.kind not in profile.kinds:
            raise ConfigError(
                f"the profile has no kind of request {each.kind!r}{did_you_mean(each.kind, list(profile.kinds))} "
                f"(name it by --trace-kind {each.kind}=KIND)"
            )
        samples = profile.kinds[each.kind]
        turn = turns[each.kind] = turns.get(each.kind, -1) + 1
        sample = resized(samples[turn % len(samples)], profile, each)
        arrivals.append(Arrival((each.at - begin) / speed, each.kind, sample))
    return arrivals


def resized(sample: Sample, profile: PipelineProfile, size: Recorded) -> Sample:
    """Return a request like ``sample`` of another size. Without ``sound``, sound is as much longer as text is.

    ``prompt`` and ``tokens`` are those of engines that make text, ``sound`` that of engines that feed a vocoder, or a function that streams
    sound, and of the functions between.
    """
    if (size.prompt, size.tokens, size.sound) == (None, None, None):
        return sample
    vocoders = {name for name in sample if profile.stages[name].kind == "vocoder"}
    growth = _growth(sample, profile, size.tokens, vocoders)
    spoken = _spoken(sample, profile, size.sound, growth)
    made: Sample = {}
    for name, visit in sample.items():
        changed = evolve(visit, chunks=dict(visit.chunks))
        if name in spoken:
            longer_by = spoken[name]
            if profile.stages[name].kind == "engine":
                changed.outputs = max(1, round(visit.outputs * longer_by))
            else:
                changed.prompt = max(min(1, visit.prompt), round(visit.prompt * longer_by))
                changed.chunks = {each: max(1, round(count * longer_by)) for each, count in visit.chunks.items()}
        elif profile.stages[name].kind == "engine":
            fed = vocoders & visit.chunks.keys()
            if fed:
                frames = {
                    each: _frames(visit.chunks[each], profile.stages[each].frame_seconds, size, growth) for each in fed
                }
                longer = max(frames[each] - visit.chunks[each] for each in fed)
                changed.chunks.update(frames)
                changed.outputs = max(1, visit.outputs + longer)
            else:
                changed.prompt = size.prompt if size.prompt is not None else visit.prompt
                changed.outputs = max(1, size.tokens) if size.tokens is not None else visit.outputs
                changed.chunks = {each: _scaled(count, changed.outputs, visit) for each, count in visit.chunks.items()}
        elif profile.stages[name].kind == "stream":
            changed.chunks = {each: max(1, round(count * growth)) for each, count in visit.chunks.items()}
        made[name] = changed
    for name, visit in made.items():  # what a stream hands on is no more than what comes
        if profile.stages[name].kind == "stream" and CLIENT in visit.chunks:
            coming = sum(made[each].chunks.get(name, 0) for each in visit.sources if each != CLIENT)
            visit.chunks[CLIENT] = min(visit.chunks[CLIENT], coming)
    return made


def _growth(sample: Sample, profile: PipelineProfile, tokens: int | None, vocoders: set[str]) -> float:
    """Return how many times longer the text is."""
    for name, visit in sample.items():
        if profile.stages[name].kind == "engine" and not vocoders & visit.chunks.keys() and visit.outputs:
            return max(1, tokens) / visit.outputs if tokens is not None else 1.0
    return 1.0


def _spoken(sample: Sample, profile: PipelineProfile, sound: float | None, growth: float) -> dict[str, float]:
    """Return how many times longer the work of stages is that make sound of a whole payload: functions that stream it, those before
    them, and the engine before these, but the first one, which makes text.
    """
    found: dict[str, float] = {}
    first = next((name for name in sample if profile.stages[name].kind == "engine"), None)
    for name, visit in sample.items():
        seconds = profile.stages[name].frame_seconds * (visit.prompt or visit.chunks.get(CLIENT, 0))
        if profile.stages[name].kind != "function" or CLIENT not in visit.chunks or not seconds:
            continue
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each == first or each in found or profile.stages[each].kind not in ("function", "engine"):
                continue
            found[each] = growth if sound is None else sound / seconds
            if profile.stages[each].kind == "function":
                waiting += [source for source in sample[each].sources if source != CLIENT]
    return found


def _frames(count: int, frame_seconds: float, size: Recorded, growth: float) -> int:
    if size.sound is not None and frame_seconds:
        return max(1, round(size.sound / frame_seconds))
    return max(1, round(count * growth))


def _scaled(count: int, outputs: int, visit: Visit) -> int:
    """Return the chunks of a stream that has ``count`` where ``visit`` has its outputs; every output but as many as did not."""
    if visit.outputs - count <= 2:  # an end that is not sent
        return max(1, outputs - (visit.outputs - count))
    return max(1, round(count * outputs / visit.outputs))
