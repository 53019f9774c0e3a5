"""Converts a deploy file of vLLM-Omni: one outcome for every key of it and of the files that it is based on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omni_cli.importing import values
from omni_cli.importing.output import checked, document, settle
from omni_cli.importing.report import NO_PIPELINE, NOTED, REFUSED, TAKEN, Outcome, Report, holds, note, refuse, take
from omni_cli.importing.target import find, known_names, resolve
from omni_cli.importing.vllm_omni import connectors, keys, placing
from omni_cli.importing.vllm_omni.context import Context, Place, section, wrong
from omni_cli.importing.vllm_omni.settings import CONNECTOR, EDGE, STAGE, TOP, Setting, load
from omni_core.api import PluginRegistry, did_you_mean


def convert(path: Path, registry: PluginRegistry, *, pipeline: str | None = None, model: str | None = None) -> Report:
    """Convert a file.

    Args:
        pipeline: ours, by name; otherwise the file's key ``pipeline`` says which, its name, or ``model_arch`` of its stages.
        model: a checkpoint folder or hub id.

    Raises:
        ConfigError: a file cannot be read, or the checkpoint. PluginError: no pipeline is called so.
    """
    found = load(path)
    named = [each for each in found if each.scope == TOP and each.keys == ("pipeline",) and not each.overridden]
    if pipeline is not None:
        component: Any = registry.get("omni_pipelines", pipeline)
    else:
        stems = list(dict.fromkeys(Path(each.leaf.file).stem for each in reversed(found)))
        called = [str(each.value) for each in named if each.value is not None]
        served = [str(each.value) for each in found if each.scope == STAGE and each.keys == ("model_arch",)]
        component = find(registry, called, stems) or (None if called else find(registry, served, []))
    if component is None:
        return _without_pipeline(found, registry)
    target = resolve(component, model, registry)
    in_effect = {
        (*each.identity, each.keys): each for each in found if each.problem is None and each.overridden is None
    }
    context = Context(target, in_effect)
    entries = settle((each.leaf, _outcome(context, each)) for each in found)
    entries = checked(entries, placing.overfull)
    return Report(
        target.name,
        target.numbers,
        entries,
        document(entries, target.all_stages, pipeline=target.name, model_path=model),
    )


def _outcome(context: Context, setting: Setting) -> Outcome:
    if setting.problem is not None:
        return refuse(setting.problem)
    if setting.overridden is not None:
        return holds(f"replaced by {setting.overridden}")
    if isinstance(setting.value, str) and "${" in setting.value:
        return refuse("write the value in place of the interpolation")
    if setting.platform in keys.ELSEWHERE:
        return note(keys.ELSEWHERE[str(setting.platform)])
    if setting.platform is not None and setting.platform not in keys.PLATFORMS:
        known = [*keys.PLATFORMS, *keys.ELSEWHERE]
        return refuse(f"no platform is called {setting.platform!r}{did_you_mean(setting.platform, known)}")
    if setting.scope == STAGE:
        return _of_stage(context, setting)
    if setting.scope == CONNECTOR:
        return connectors.connector(context, setting)
    if setting.scope == EDGE:
        return _of_edge(context, setting)
    return _of_file(context, setting)


def _of_stage(context: Context, setting: Setting) -> Outcome:
    if not setting.keys:
        return holds("no stages")
    assert setting.stage is not None
    stages = context.stages(setting.stage)
    if not stages:
        numbers = ", ".join(f"{number} ({name})" for number, name in context.target.numbers.items())
        return refuse(
            f"{context.target.name} has no stage {setting.stage}; it has {numbers}. vllm-omni drops such a stage"
        )
    key, *inner = setting.keys
    places = [Place(context, setting, stage, setting.stage, key) for stage in stages]
    if key == "stage_id":
        return holds(f"is {' + '.join(stages)}")
    if setting.platform is not None and (lost := _lost(context, setting)):
        return refuse(
            f"on {setting.platform}, vllm-omni replaces the whole of `{key}`, and loses {lost}; repeat it here"
        )
    if key in ("input_connectors", "output_connectors"):
        return connectors.edge_end(places[0])
    if key == "limit_mm_per_prompt":
        return _limit(setting)
    if inner and (key in keys.SINGLE or key in context.target.declaration.known):
        return refuse("must be a single value")
    declared = connectors.model_key(context.target, key, setting.value)
    if declared is not None:
        return declared
    rule = keys.STAGE.get(key)
    if rule is None:
        known = [*keys.STAGE, *keys.OTHER_STAGE_KEYS, *context.target.declaration.known]
        return refuse(f"no key of a stage is called {key!r}{did_you_mean(key, known)}")
    if setting.value is None and not inner:
        return holds("null: not set")
    return _joined([rule(place) for place in places])


def _joined(outcomes: list[Outcome]) -> Outcome:
    """Return the outcome of a key that several of our stages have: refused if one refuses it, taken if one takes it."""
    kind = next(each for each in (REFUSED, TAKEN, NOTED) if any(outcome.kind == each for outcome in outcomes))
    alike = [outcome for outcome in outcomes if outcome.kind == kind]
    texts = dict.fromkeys(outcome.text for outcome in alike if outcome.text)
    return Outcome(kind, "; ".join(texts), tuple(pair for outcome in alike for pair in outcome.writes))


def _lost(context: Context, setting: Setting) -> str:
    """Return the keys of a mapping that a platform's section takes away from the stage, in vLLM-Omni, without saying so."""
    key = setting.keys[0]
    if setting.deep or key == "env" or len(setting.keys) < 2:
        return ""
    place = (STAGE, None, setting.stage)
    below = [each.keys for each in context.settings.values() if each.identity == place and each.keys[:1] == (key,)]
    own = [
        each.keys for each in context.settings.values() if each.identity == setting.identity and each.keys[:1] == (key,)
    ]
    return ", ".join(".".join(each) for each in below if len(each) > 1 and each not in own)


def _limit(setting: Setting) -> Outcome:
    """``limit_mm_per_prompt.KIND``: the parts of a request, of the whole pipeline here."""
    kinds = setting.keys[1:]
    name = keys.LIMITS.get(kinds[0]) if len(kinds) == 1 else None
    if name is None:
        return refuse(f"must map {', '.join(keys.LIMITS)} to numbers{did_you_mean('.'.join(kinds), keys.LIMITS)}")
    try:
        return take(((*section(setting.platform), "limits", name), values.whole(setting.value)))
    except ValueError as error:
        return wrong(error, setting.value)


def _of_edge(context: Context, setting: Setting) -> Outcome:
    if len(setting.keys) != 2 or setting.keys[1] not in ("from", "to", "window_size", "max_inflight"):
        return refuse("an edge has the keys from, to, window_size and max_inflight")
    edge, key = context.edges[setting.keys[0]], setting.keys[1]
    if key == "window_size":
        return note("a stage takes what the stage before sends, as it comes; vllm-omni does not read it either")
    if key == "max_inflight":
        return note("`relay: {credits: N}` bounds what is under way; vllm-omni does not read it either")
    ends = [edge.get("from"), edge.get("to")]
    senders, receivers = (context.stages(each) for each in ends)
    if not senders or not receivers:
        return refuse(f"must lead from one stage_id to another, is {ends[0]!r} to {ends[1]!r}")
    if not context.target.reaches(senders, receivers):
        return refuse(
            f"in {context.target.name}, {senders[-1]} sends nothing to {receivers[0]}; the topology is the pipeline's"
        )
    return holds(f"{senders[-1]} sends to {receivers[0]}")


def _of_file(context: Context, setting: Setting) -> Outcome:
    key = setting.keys[0]
    if len(setting.keys) == 1 and setting.value in (None, {}, []) and key in (*keys.TOP, *keys.SECTIONS):
        return holds("not set")
    if len(setting.keys) > 1 and key in keys.SINGLE_TOP:
        return refuse("must be a single value")
    if key == "base_config" and isinstance(setting.value, str):
        return holds("laid beneath this file")
    if key == "pipeline":
        ours = setting.value in context.target.names
        return holds(f"is {context.target.name}" if ours else "--pipeline is in its place")
    if key == "async_chunk":
        return _streams(context, setting)
    if key in keys.EVERY_STAGE:
        return _of_every_stage(context, setting)
    if key == "custom_voice_dir" and isinstance(setting.value, str):
        return take((("server", "voices"), setting.value))
    if key in ("session_mode", "model_runner") and setting.value in ("turn", "duplex", "v1"):
        return holds(keys.TOP[key])
    if keys.TOP.get(key):
        return note(keys.TOP[key])
    if key in (*keys.TOP, *keys.SECTIONS):
        return refuse("is not of the form that a deploy file has there")
    stage_key = f"; write {key} in each of `stages`" if key in keys.STAGE else ""
    known = [*keys.TOP, *keys.SECTIONS]
    return refuse(
        f"no key of a deploy file is called {key!r}{stage_key or did_you_mean(key, known)}; vllm-omni drops it"
    )


def _streams(context: Context, setting: Setting) -> Outcome:
    """``async_chunk``: stages that stream to each other."""
    if setting.value is False:
        return note("stages stream to each other always; results are the same")
    if setting.value is not True:
        return refuse(f"must be true or false, is {setting.value!r}")
    if len(context.target.stages) > 1 and not any(stage.stream_to for stage in context.target.config.stages):
        return refuse(f"no stage of {context.target.name} streams to another (`stream_to`); write false")
    return holds("stages stream to each other")


def _of_every_stage(context: Context, setting: Setting) -> Outcome:
    """A key of the file that holds for each stage without it: as an option of the pipeline, or of each stage."""
    key = setting.keys[0]
    if key in context.target.options and key == "dtype":
        try:
            return take((("options", key), values.dtype(setting.value)))
        except ValueError as error:
            return wrong(error, setting.value)
    places = [
        Place(context, setting, stage, number, key)
        for number, stages in enumerate(context.target.stages)
        if (STAGE, None, number, (key,)) not in context.settings
        for stage in stages
    ]
    return _joined([keys.STAGE[key](place) for place in places]) if places else holds("every stage has its own")


def _without_pipeline(found: list[Setting], registry: PluginRegistry) -> Report:
    """Return the report of a file that no installed pipeline serves: every key refused, wrong ones for what is wrong."""
    named = next((str(each.value) for each in found if each.scope == TOP and each.keys == ("pipeline",)), None)
    title = (
        f"no installed pipeline is called {named!r} there"
        if named
        else "the file does not say which pipeline it is for"
    )

    def outcomes() -> Iterator[tuple[Any, Outcome]]:
        for each in found:
            key = each.keys[0] if each.keys else ""
            if each.problem is not None:
                yield each.leaf, refuse(each.problem)
            elif each.scope == STAGE and key and key not in (*keys.STAGE, *keys.OTHER_STAGE_KEYS):
                hint = did_you_mean(key, [*keys.STAGE, *keys.OTHER_STAGE_KEYS])
                yield each.leaf, refuse(f"no key of a stage is called {key!r}{hint}")
            elif each.scope == TOP and key not in (*keys.TOP, *keys.SECTIONS):
                yield each.leaf, refuse(f"no key of a deploy file is called {key!r}{did_you_mean(key, keys.TOP)}")
            elif each.keys == ("pipeline",):
                yield (
                    each.leaf,
                    refuse(f"{title}{did_you_mean(str(each.value), known_names(registry))}; or give --pipeline NAME"),
                )
            else:
                yield each.leaf, refuse(NO_PIPELINE)

    known = ", ".join(known_names(registry)) or "none"
    return Report(f"{title} (known: {known}); give --pipeline NAME", entries=settle(outcomes()))
