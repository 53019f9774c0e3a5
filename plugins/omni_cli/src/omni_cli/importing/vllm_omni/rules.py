"""The kinds of rules that the tables of keys are made of. A rule returns the outcome of one key of a stage."""

from __future__ import annotations

import json
from typing import Any

from omni_cli.importing.report import NOTED, Outcome, holds, note, refuse, take
from omni_cli.importing.values import Reader, count, text
from omni_cli.importing.vllm_omni.context import Place, Rule, wrong
from omni_core.api import SPEECH, TEXT


def argument(name: str, read: Reader, otherwise: str, *, without: Any = None) -> Rule:
    """Return a rule that sets an argument of the stage's factory.

    Args:
        otherwise: the note where the stage takes no such argument.
        without: the value that says what is the case there anyway.
    """

    def rule(place: Place) -> Outcome:
        try:
            value = read(place.value)
        except ValueError as error:
            return wrong(error, place.value)
        if place.accepts(name):
            return take((place.at("factory_args", name), value))
        if without is not None and value == without:
            return holds(f"{place.stage}: {otherwise}")
        return note(f"{place.stage}: {otherwise}")

    return rule


def noted(reason: str, **values: str) -> Rule:
    """Return a rule for a key without a counterpart. ``values``: by value, as JSON, why it holds anyway."""

    def rule(place: Place) -> Outcome:
        written = json.dumps(place.value, default=str)
        return holds(values[written]) if written in values else note(reason)

    return rule


def refused(advice: str, **values: str) -> Rule:
    """Return a rule for a key that cannot be had. ``values``: by value, as JSON, why it holds anyway."""

    def rule(place: Place) -> Outcome:
        written = json.dumps(place.value, default=str)
        return holds(values[written]) if written in values else refuse(advice)

    return rule


def context(place: Place) -> Outcome:
    """``max_model_len``: the positions of one request. A stage without such a bound is bounded by the one that feeds it."""
    bounded = [each for each in place.before if "max_context" in (place.context.target.parameters(each) or ())]
    outcome = argument("max_context", count, "takes inputs of any length")(place)
    if outcome.kind == NOTED and bounded:
        return holds(f"{place.stage}: what it gets is bounded by max_context of {bounded[-1]}")
    return outcome


def chunked_prefill(place: Place) -> Outcome:
    """``enable_chunked_prefill``: true is our default; false computes a prompt in one step."""
    if not isinstance(place.value, bool):
        return refuse(f"must be true or false, is {place.value!r}")
    if not place.accepts("chunk_size"):
        return holds(f"{place.stage}: has no prefill")
    if place.value:
        return holds(f"{place.stage}: prompts are computed in chunks (chunk_size)")
    size = place.effective("max_num_batched_tokens") or place.effective("max_model_len")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        return note(
            f"{place.stage}: no size to compute prompts in one step; chunks give the same results. Or set chunk_size"
        )
    return take((place.at("factory_args", "chunk_size"), size))


def cache_bytes(place: Place) -> Outcome:
    """``kv_cache_memory_bytes``: the size of the KV cache, here in MiB."""
    if isinstance(place.value, bool) or not isinstance(place.value, int) or place.value < 2**20:
        return refuse(f"must be a number of bytes, at least 1 MiB, is {place.value!r}")
    if not place.accepts("kv_cache_mb"):
        return note(f"{place.stage}: has no KV cache")
    return take((place.at("factory_args", "kv_cache_mb"), place.value // 2**20))


def eager(place: Place) -> Outcome:
    """``enforce_eager``: true is without CUDA graphs."""
    if not isinstance(place.value, bool):
        return refuse(f"must be true or false, is {place.value!r}")
    if place.accepts("cuda_graphs"):
        return take((place.at("factory_args", "cuda_graphs"), not place.value))
    return (
        holds(f"{place.stage}: computes without CUDA graphs")
        if place.value
        else note(f"{place.stage}: has no CUDA graphs")
    )


def graph_size(place: Place) -> Outcome:
    """``max_cudagraph_capture_size``: 0 is without CUDA graphs."""
    if place.value != 0 or isinstance(place.value, bool):
        return note("CUDA graphs are recorded for the sizes that occur, up to max_running")
    if place.accepts("cuda_graphs"):
        return take((place.at("factory_args", "cuda_graphs"), False))
    return holds(f"{place.stage}: computes without CUDA graphs")


def environment(place: Place) -> Outcome:
    """``env.NAME``: a variable of the stage's processes."""
    if len(place.setting.keys) != 2:
        return refuse("must map names of variables to texts")
    if isinstance(place.value, bool) or not isinstance(place.value, str | int | float):
        return refuse(f"must be a text or a number, is {place.value!r}")
    return take((place.at("env", place.setting.keys[1]), str(place.value)))


def own_process(place: Place) -> Outcome:
    """``runtime.process``: false shares the process of the stage before."""
    if not isinstance(place.value, bool):
        return refuse(f"must be true or false, is {place.value!r}")
    stages = place.context.target.config.stages
    own = place.context.target.config.stage(place.stage)
    if place.value:
        if any(other.process == own.process for other in stages if other.name != own.name):
            return take((place.at("process"), place.stage))
        return holds(f"{place.stage} has a process of its own")
    if not place.before:
        return refuse("the first stage has none before it whose process it could share; write true")
    return take((place.at("process"), place.context.target.config.stage(place.before[-1]).process))


def architecture(place: Place) -> Outcome:
    """``model_arch``: must be a model of this pipeline."""
    known = place.context.target.architectures
    if place.value in known:
        return holds(f"{place.context.target.name} serves it")
    return refuse(
        f"{place.context.target.name} serves {', '.join(known) or 'no architecture by name'}; choose another --pipeline"
    )


def sources(place: Place) -> Outcome:
    """``engine_input_source``: must be what our topology says."""
    target = place.context.target
    if not isinstance(place.value, list) or not all(type(each) is int for each in place.value):
        return refuse(f"must be a list of stage_ids, is {place.value!r}")
    for number in place.value:
        sources = place.context.stages(number)
        if not sources:
            return refuse(f"there is no stage {number} here")
        if not target.reaches(sources, place.group):
            return refuse(
                f"in {target.name}, {sources[-1]} sends nothing to {place.group[0]}; the topology is the pipeline's"
            )
    return holds("the pipeline's own topology")


def scheduler(place: Place) -> Outcome:
    """``scheduler_cls``: vLLM-Omni's own are the counterparts of ours."""
    try:
        name = text(place.value).rpartition(".")[2]
    except ValueError as error:
        return wrong(error, place.value)
    autoregressive = place.context.target.config.stage(place.stage).model_runner is not None
    if autoregressive and name in ("OmniARScheduler", "OmniARAsyncScheduler"):
        return holds("the installed engine schedules this stage")
    if not autoregressive and name == "OmniGenerationScheduler":
        return holds("the stage's own scheduler does this")
    return refuse(
        "a scheduler of another system cannot be loaded; `scheduler:` takes a registered name: omni plugins list"
    )


def function(place: Place) -> Outcome:
    """``custom_process_input_func``: vLLM-Omni's own are part of our pipeline; a user's cannot be translated."""
    if isinstance(place.value, str) and place.value.startswith("vllm_omni."):
        return holds("the pipeline here does this itself")
    return refuse("a function of your own cannot be converted; write it as project_payload or merge_fn of a pipeline")


def output_type(place: Place) -> Outcome:
    """``engine_output_type`` and ``final_output_type``: what the pipeline gives anyway."""
    outputs = place.context.target.interface.outputs
    if place.value in ("latent", *outputs):
        return holds("the pipeline's stages declare their outputs")
    return refuse(f"{place.context.target.name} answers in {', '.join(outputs) or 'nothing that it declares'}")


def final_output(place: Place) -> Outcome:
    """``final_output``: must be what our topology says."""
    target = place.context.target
    writes = target.interface.roles.get(TEXT) in place.group and "text" in target.interface.outputs
    is_final = writes or any(target.config.stage(each).terminal for each in place.group)
    if place.value is is_final:
        return holds("the pipeline's own topology")
    return refuse(
        f"in {target.name} it is {json.dumps(is_final)}; requests choose by `modalities` what they are answered with"
    )


def comprehension(place: Place) -> Outcome:
    """``is_comprehension``: the stage that reads the prompt."""
    roles = place.context.target.interface.roles
    reads = roles.get(TEXT) in place.group or (roles.get(SPEECH) in place.group and place.number == 0)
    if place.value is reads:
        return holds("the pipeline's own topology")
    return refuse(f"in {place.context.target.name} it is {json.dumps(reads)}")
