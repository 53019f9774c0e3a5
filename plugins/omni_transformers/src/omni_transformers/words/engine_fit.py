"""Models that fit the engine, and the reasons of others: by what their layers ask of their attention, and by their logits."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from attrs import evolve, frozen
from transformers import GenerationMixin

from omni_core.api import (
    ARRequest,
    ConfigError,
    IncomingMessage,
    OmniRequest,
    SamplingParams,
    StagePayload,
)
from omni_torch.api import (
    ALONE,
    ARModelRunner,
    EngineScheduler,
    Int4WeightLinear,
    Int8GroupsLinear,
    TensorParallel,
)
from omni_transformers.words.engine_layers import TAKEN, Unfit, examined, layout_of, pack_layers
from omni_transformers.words.engine_model import NAME, Decoder, EngineModel
from omni_transformers.words.engine_prompts import VISUAL
from omni_transformers.words.engine_ranks import planned, split
from omni_transformers.words.engine_stack import KernelSteps, kernel_steps

_MEDIA = re.compile("pixel_values|input_features|input_values|image|audio|speech|video")

_GENERATION = {
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "sequence_bias": None,
    "stop_strings": None,
    "top_h": None,
    "typical_p": 1.0,
    "watermarking_config": None,
}
"""Settings of a generation config that ``generate()`` honours and the engine does not, and where they do nothing."""


def backend_of(model: Any) -> tuple[str, list[str]]:
    """Return ``engine``, or ``steps`` and the reasons. It computes a few short forwards of the model, which stays as it was."""
    if reasons := [*_by_config(model)]:
        return "steps", reasons
    before = model.get_decoder().config._attn_implementation
    try:
        fitted(model).decoder.attend_by(before)
    except Unfit as unfit:
        return "steps", unfit.reasons
    return "engine", []


@torch.inference_mode()
def fitted(model: Any, parallel: TensorParallel = ALONE, device: str = "cpu") -> EngineModel:
    """Return a model on the engine's contract, when its logits there were found equal to those of its own forward.

    Its decoder can then be run by the engine alone.

    Args:
        parallel: several ranks split the model. It is given whole, on a CPU, and is a rank's share afterwards, on ``device``, whose
            logits there were found equal to those of the whole model's own forward. All ranks must call it alike.

    Raises:
        Unfit: it does not fit; of one rank, it is as it was.
        ConfigError: its plan does not allow these ranks.
    """
    if reasons := [*_by_config(model)]:
        raise Unfit(*reasons)
    decoder = Decoder(model)
    before = decoder.module.config._attn_implementation
    ids = _plain_ids(model)
    try:
        plan = planned(model, decoder) if parallel.size > 1 else None
        layers, given, hidden = examined(model, decoder, ids)
        layout = layout_of(model, layers, given)
        decoder.attend_by("eager")
        lines = [ids[:9], ids[9:15]]
        expected = _Expected.of(model, lines)
        if plan is not None:
            split(model, decoder, plan, layers, parallel, device)
            expected = expected.on(device)
            layers, given, hidden = examined(model, decoder, ids.to(device))
            layout = layout_of(model, layers, given)
        decoder.attend_by(NAME)
        found = EngineModel(model, decoder, layout, expected.logits[0].shape[1], plain_head=True, parallel=parallel)
        if _distance(model.get_output_embeddings()(hidden), _own_logits(found, hidden)) > _ALLOWED:
            found.plain_head = False
        _compare(found, expected)
        if parallel.size == 1:
            found.kernels = _kernels(found, [each.scale for each in layers], expected)
            if found.kernels is None:
                pack_layers(decoder.module, lambda: _compare(found, expected))
    except (Unfit, ConfigError):
        decoder.attend_by(before)
        raise
    except Exception as error:
        decoder.attend_by(before)
        raise Unfit(f"it does not run there: {type(error).__name__}: {error}") from error
    return found


def _by_config(model: Any) -> Iterable[str]:
    """Yield why a model does not fit, as far as its class and configs tell."""
    if model.config.is_encoder_decoder:
        yield "it has an encoder and a decoder that attends to it"
        return
    if not isinstance(model, GenerationMixin) or not _generates_plainly(model):
        yield f"{type(model).__name__} generates by code of its own"
    if model.get_output_embeddings() is None:
        yield "it names no output embeddings"
    parameters = inspect.signature(model.get_decoder().forward).parameters
    if taken := [name for name in parameters if _MEDIA.search(name)]:
        yield f"its decoder takes {taken[0]} itself"
    if lacking := {"inputs_embeds", "position_ids"} - set(parameters):
        yield f"its decoder takes no {' and no '.join(sorted(lacking))}"
    media = any(_MEDIA.search(name) for name in inspect.signature(model.forward).parameters)
    ours = {*TAKEN, *VISUAL, "kwargs", "labels"} if media else set(parameters) - {"per_layer_inputs"}
    for name in parameters:
        if name not in ours and name not in taken:
            yield f"its decoder takes {name}"
    rope = getattr(model.get_decoder().config, "rope_parameters", None) or {}
    if (axes := len(rope.get("mrope_section") or ())) > 3:
        yield f"its rotary positions have {axes} axes"
    for kind in sorted(_rope_types(rope)):
        if kind == "longrope" or "dynamic" in kind:
            yield f"its rotary positions change with the length of the text ({kind})"
    generation = model.generation_config
    for name, neutral in _GENERATION.items():
        if getattr(generation, name, None) not in (None, neutral):
            yield f"its generation config sets {name}"


class _Asked(Exception):
    """The ``generate()`` of transformers was called."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given


class _Asks(GenerationMixin):
    """Stands in for :class:`GenerationMixin` behind the class of a model."""

    def generate(self, *given: Any, **named: Any) -> Any:
        raise _Asked(dict(zip(("inputs", *_GENERATE), given, strict=False)) | named)


_GENERATE = [*inspect.signature(GenerationMixin.generate).parameters][2:]


def _generates_plainly(model: Any) -> bool:
    """Return whether a model's ``generate()`` is that of transformers, or hands texts and media on to it as they are."""
    if type(model).generate is GenerationMixin.generate:
        return True
    media = [name for name in inspect.signature(model.forward).parameters if _MEDIA.search(name)]
    given = {"input_ids": torch.zeros(1, 1, dtype=torch.long), **{name: torch.zeros(1) for name in media}}
    probe = copy.copy(model)
    try:
        probe.__class__ = type("Probe", (type(model), _Asks), {})
        probe.generate(**given, max_new_tokens=1)
    except _Asked as asked:
        return all(asked.given.get(name) is each for name, each in given.items())
    except Exception:
        return False
    return False


def _rope_types(parameters: Any) -> set[str]:
    if not isinstance(parameters, dict):
        return set()
    nested = [_rope_types(each) for each in parameters.values()]
    return {str(parameters.get("rope_type", "default"))}.union(*nested)


def _plain_ids(model: Any) -> torch.Tensor:
    """Return 15 ids at random, none of which a config names."""
    configs = [model.config, model.get_decoder().config]
    special = {
        number
        for config in configs
        for name, value in config.to_dict().items()
        if name.endswith(("_token_id", "_token_index"))
        for number in (value if isinstance(value, list) else [value])
    }
    vocabulary = model.get_input_embeddings().weight.shape[0]
    order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(0)).tolist()
    ids = [number for number in order if number not in special][:15]
    return torch.tensor(ids * -(-15 // len(ids)), device=model.device)[:15]


def _own_logits(found: EngineModel, hidden: torch.Tensor) -> torch.Tensor:
    found.plain_head = False
    logits = found.compute_logits(hidden)
    found.plain_head = True
    return logits


_ALLOWED, _ROUNDED = 2e-4, 0.1
"""The distance of logits that only the order of float32's sums explains, and that rounded inputs of narrow weights do."""


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the size of the difference of logits ``[n, vocab]``, as a part of what the second ones differ by in a row."""
    other = other.float()
    return float((one.float() - other).norm() / (other - other.mean(-1, keepdim=True)).norm())


@frozen(eq=False)
class _Expected:
    """The logits of lines of ids, and the distance from them that rounding explains."""

    lines: list[torch.Tensor]
    logits: list[torch.Tensor]
    allowed: float

    def on(self, device: str) -> _Expected:
        """Return it on another device."""
        return evolve(
            self, lines=[each.to(device) for each in self.lines], logits=[each.to(device) for each in self.logits]
        )

    @classmethod
    def of(cls, model: Any, lines: list[torch.Tensor]) -> _Expected:
        """Compute lines by a model's own forward; with weights in 16 bits in float32 too, which tells what its rounding does."""

        def computed() -> list[torch.Tensor]:
            return [model(input_ids=line.unsqueeze(0), use_cache=False).logits[0].float() for line in lines]

        own = computed()
        if not all(bool(each.isfinite().all()) for each in own):
            raise ConfigError(
                f"{model.name_or_path or type(model).__name__}: its logits are not finite; download the checkpoint again"
            )
        if any(isinstance(each, Int8GroupsLinear | Int4WeightLinear) for each in model.modules()):
            return cls(lines, own, _ROUNDED)
        if model.dtype == torch.float32:
            return cls(lines, own, _ALLOWED)
        with _in_float32(model):
            exact = computed()
        return cls(lines, exact, 0.02 + 1.5 * max(map(_distance, own, exact)))


@contextmanager
def _in_float32(model: Any) -> Iterator[None]:
    """Let the modules of a model compute in float32: each widens its weights while it is called."""
    kept: dict[Any, list[tuple[Any, torch.Tensor]]] = {}

    def widen(module: Any, given: Any) -> None:
        narrow = [each for each in module.parameters(recurse=False) if each.dtype in (torch.bfloat16, torch.float16)]
        kept[module] = [(each, each.data) for each in narrow]
        with torch.inference_mode(False):
            for each in narrow:
                each.data = each.data.float()

    def restore(module: Any, given: Any, output: Any) -> None:
        for each, data in kept.pop(module, ()):
            each.data = data

    modules = [each for each in model.modules() if [*each.parameters(recurse=False)]]
    hooks = [each.register_forward_pre_hook(widen) for each in modules]
    hooks += [each.register_forward_hook(restore, always_call=True) for each in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _kernels(found: EngineModel, scales: list[float | None], expected: _Expected) -> KernelSteps | None:
    """Return the steps by kernels, if their logits are those of the model. How positions rotate, the nearer logits tell."""
    nearest, least = None, math.inf
    for pairs in (False, True):
        found.kernels = kernel_steps(found.decoder.module, found.kv_layout, scales, pairs=pairs)
        distance = math.inf if found.kernels is None else _agreement(found, expected)
        if distance < least:
            nearest, least = found.kernels, distance
    found.kernels = None
    return nearest


def _agreement(found: EngineModel, expected: _Expected) -> float:
    """Return the distance from the expected logits; infinite: they differ, or a step fails."""
    try:
        return _compare(found, expected)
    except Exception:
        return math.inf


class _Told(ARModelRunner):
    """Writes texts that are given, and keeps the logits of each of their tokens."""

    model: EngineModel

    def __init__(self, model: EngineModel, texts: list[torch.Tensor], prompt: int) -> None:
        super().__init__(model, texts[0].device)
        self._texts, self._prompt = [each.tolist() for each in texts], prompt
        self.logits: list[list[torch.Tensor]] = [[] for _ in texts]
        self.errors: list[BaseException] = []
        self.scheduler: EngineScheduler
        self._left = len(texts)

    def receive(self, message: IncomingMessage) -> ARRequest:
        ids = self._texts[int(message.request_id)]
        sampling = SamplingParams(max_new_tokens=len(ids) - self._prompt + 1)
        return ARRequest(message.request_id, OmniRequest(), ids[: self._prompt], sampling)

    def choose(self, logits: torch.Tensor, requests: list[ARRequest]) -> list[int]:
        chosen = []
        for row, request in zip(logits, requests, strict=True):
            number = int(request.request_id)
            self.logits[number].append(row.float())
            chosen.append([*self._texts[number], 0][request.length])
        return chosen

    def result(self, request: ARRequest) -> None:
        return None

    def release(self, request_id: str) -> None:
        self._left -= 1
        if not self._left:
            self.scheduler.stop()


def _compare(found: EngineModel, expected: _Expected) -> float:
    """Compute texts together on an engine, in pieces; return the distance of their logits from the expected ones.

    Raises:
        Unfit: they differ.
    """
    prompt, lines = 5, expected.lines
    runner = _Told(found, lines, prompt)
    runner.scheduler = EngineScheduler(
        runner, kv_blocks=16, block_size=4, chunk_size=3, max_batch_tokens=5, cuda_graphs=False, max_context=64
    )
    for number in range(len(lines)):
        runner.scheduler.inbox.put(
            IncomingMessage(str(number), "new_request", StagePayload(str(number), OmniRequest()))
        )
    runner.scheduler.start()
    while (message := runner.scheduler.outbox.get(0)) is not None:
        if message.type == "error":
            raise message.data
    pairs = zip(runner.logits, expected.logits, strict=True)
    distances = [_distance(torch.stack(rows), whole[prompt - 1 :]) for rows, whole in pairs]
    if not all(each <= expected.allowed for each in distances):
        raise Unfit("its logits are not those of its own forward: something beside attention sees other tokens")
    return max(distances)
