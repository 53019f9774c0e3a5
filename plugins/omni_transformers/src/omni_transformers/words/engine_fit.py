"""Whether a model's decoder fits the engine, and why not: by what its layers ask of their attention, and by its logits."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from attrs import define, evolve, field
from transformers import AttentionInterface, AttentionMaskInterface, GenerationMixin

from omni_core.api import (
    ARRequest,
    AttentionForm,
    IncomingMessage,
    KVLayout,
    OmniRequest,
    SamplingParams,
    StagePayload,
)
from omni_torch.api import ARModelRunner, EngineScheduler, pack_decoder, pack_linears
from omni_transformers.words.engine_model import NAME, Decoder, EngineModel, attending
from omni_transformers.words.engine_stack import kernel_steps

_EXAMINED = "omni-examined"
"""As :data:`omni_transformers.words.engine_model.NAME`, with masks, whose functions are looked at."""

_MEDIA = re.compile("pixel_values|input_features|input_values|image|audio|speech|video")

_KNOWN = {"scaling", "sliding_window", "softcap", "s_aux", "dropout", "is_causal", "position_ids", "use_cache"}
_TAKEN = {
    *("input_ids", "inputs_embeds", "attention_mask", "position_ids", "past_key_values", "use_cache"),
    *("cache_position", "return_dict", "output_attentions", "output_hidden_states", "logits_to_keep"),
}
"""Arguments of a decoder that the engine gives itself, or that change nothing."""

_FARTHEST = 2**20
"""No window of a model is as wide."""

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


class Unfit(Exception):
    """A model does not fit the engine. ``reasons`` in words."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


def backend_of(model: Any) -> tuple[str, list[str]]:
    """Return ``engine``, or ``steps`` and the reasons. It computes a few short forwards of the model, which stays as it was."""
    before = model.get_decoder().config._attn_implementation
    try:
        fitted(model).decoder.attend_by(before)
    except Unfit as unfit:
        return "steps", unfit.reasons
    return "engine", []


@torch.inference_mode()
def fitted(model: Any) -> EngineModel:
    """Return a model on the engine's contract, when its logits there were found equal to those of its own forward.

    Its decoder can then be run by the engine alone.

    Raises:
        Unfit: it does not fit; it is as it was.
    """
    if reasons := [*_by_config(model)]:
        raise Unfit(*reasons)
    decoder = Decoder(model)
    before = decoder.module.config._attn_implementation
    ids = _plain_ids(model)
    try:
        layers, given, hidden = _examined(model, decoder, ids)
        layout = _layout(model, layers, given)
        decoder.attend_by("eager")
        lines = [ids[:9], ids[9:15]]
        expected = [model(input_ids=line.unsqueeze(0), use_cache=False).logits[0].float() for line in lines]
        decoder.attend_by(NAME)
        found = EngineModel(model, decoder, layout, expected[0].shape[1], plain_head=True)
        if not _equal(model.get_output_embeddings()(hidden), _own_logits(found, hidden)):
            found.plain_head = False
        _compare(found, lines, expected)
        for pairs in (False, True):
            found.kernels = kernel_steps(decoder.module, layout, [each.scale for each in layers], pairs=pairs)
            if found.kernels is None or _agrees(found, lines, expected):
                break
            found.kernels = None
        if found.kernels is None:
            _pack(found, lines, expected)
    except Unfit:
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
    if not isinstance(model, GenerationMixin) or type(model).generate is not GenerationMixin.generate:
        yield f"{type(model).__name__} generates by code of its own"
    if model.get_output_embeddings() is None:
        yield "it names no output embeddings"
    parameters = inspect.signature(model.get_decoder().forward).parameters
    if taken := [name for name in parameters if _MEDIA.search(name)]:
        yield f"its decoder takes {taken[0]} itself"
    if lacking := {"inputs_embeds", "position_ids"} - set(parameters):
        yield f"its decoder takes no {' and no '.join(sorted(lacking))}"
    if "per_layer_inputs" in parameters:
        yield "its decoder has inputs of its own for each layer"
    for kind in sorted(_rope_types(getattr(model.get_decoder().config, "rope_parameters", None))):
        if kind == "longrope" or "dynamic" in kind:
            yield f"its rotary positions change with the length of the text ({kind})"
    generation = model.generation_config
    for name, neutral in _GENERATION.items():
        if getattr(generation, name, None) not in (None, neutral):
            yield f"its generation config sets {name}"


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


@define
class _Masks:
    """The functions of the masks that were made, by the address of what was returned for each."""

    functions: dict[int, Callable[..., torch.Tensor]] = field(factory=dict)
    kept: list[torch.Tensor] = field(factory=list)

    def make(self, q_length: int, kv_length: int, mask_function: Any, device: Any = "cpu", **given: Any) -> Any:
        mask = torch.ones(1, 1, int(q_length), int(kv_length), dtype=torch.bool, device=device)
        self.kept.append(mask)
        self.functions[mask.data_ptr()] = mask_function
        return mask

    def window(self, mask: Any) -> int | None:
        """Return the window of a layer's mask; ``None``: it sees all positions before its own.

        Raises:
            Unfit: it is no mask of either kind.
        """
        function = self.functions.get(mask.data_ptr()) if isinstance(mask, torch.Tensor) else None
        if function is None:
            raise Unfit("a mask of the model's own making")
        found = set()
        for row in (2 * _FARTHEST, 2 * _FARTHEST + 1234, 3 * _FARTHEST - 1):
            distances = torch.arange(-2, _FARTHEST)
            try:
                seen = function(*torch.tensor([0, 0, row]), row - distances).expand(len(distances))
            except Exception:
                raise Unfit("a mask that depends on the tokens") from None
            width = int(seen.sum())
            if not torch.equal(seen, (distances >= 0) & (distances < width)):
                raise Unfit("no causal mask" if bool(seen[:2].any()) else "a mask in pieces")
            found.add(width)
        if len(found) > 1:
            raise Unfit("attention in chunks")
        return None if (width := found.pop()) == _FARTHEST else width


_masks = _Masks()


def _mask(**given: Any) -> Any:
    given.pop("batch_size", None)
    return _masks.make(**given)


AttentionInterface.register(_EXAMINED, AttentionInterface()[NAME])
AttentionMaskInterface.register(_EXAMINED, _mask)


@define
class _Layer:
    """What a layer asked of its attention: the heads of queries and keys, the widths of keys and values."""

    index: int | None
    heads: int
    kv_heads: int
    width: int
    value_width: int
    dtype: torch.dtype
    scale: float | None
    form: AttentionForm | None
    reason: str | None


def _examined(model: Any, decoder: Decoder, ids: torch.Tensor) -> tuple[list[_Layer], dict[str, Any], torch.Tensor]:
    """Run a model's own forward; return its layers, the decoder's arguments, and hidden states ``[n, hidden]``."""
    layers: list[_Layer] = []
    arguments: dict[str, Any] = {}
    hidden: list[torch.Tensor] = []

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, given: dict[str, Any]
    ) -> torch.Tensor:
        form, reason = None, None
        unknown = [name for name, each in given.items() if name not in _KNOWN and each not in (None, False)]
        try:
            form = AttentionForm(_masks.window(mask), given.get("softcap"), given.get("s_aux"))
        except Unfit as unfit:
            reason = str(unfit)
        if not reason and getattr(module, "is_causal", True) is False:
            reason = "attention to later tokens"
        if not reason and unknown:
            reason = f"attention with {unknown[0]}"
        index = getattr(module, "layer_idx", None)
        sizes = query.shape[1], key.shape[1], key.shape[3], value.shape[3]
        named = form if form is not None and form.names else None
        layers.append(_Layer(index, *sizes, key.dtype, given.get("scaling"), named, reason))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])

    def decode(given: dict[str, Any]) -> Any:
        arguments.update(given)
        output = decoder.run(**given)
        hidden.append(output[0][0])
        return output

    decoder.attend_by(_EXAMINED)
    with attending(attend), decoder.instead(decode):
        model(input_ids=ids.unsqueeze(0), attention_mask=torch.ones_like(ids).unsqueeze(0), use_cache=False)
    if len(hidden) != 1:
        raise Unfit(f"a forward runs its decoder {len(hidden)} times")
    return layers, arguments, hidden[0]


def _layout(model: Any, layers: list[_Layer], given: dict[str, Any]) -> KVLayout:
    """Return the layout of the keys and values of layers as they were examined.

    Raises:
        Unfit: the layers are of another kind, or the decoder got something that the engine could not give it.
    """
    config = model.get_decoder().config
    count = config.num_hidden_layers
    reasons: dict[str, list[int]] = {}
    kinds = getattr(config, "layer_types", None) or ["no attention of transformers' table"] * count
    for index in sorted(set(range(count)) - {each.index for each in layers if each.index is not None}):
        reasons.setdefault(kinds[index].replace("_", " "), []).append(index)
    for each in layers:
        if each.reason is not None:
            reasons.setdefault(each.reason, []).append(-1 if each.index is None else each.index)
    if not reasons:
        numbers = [each.index for each in layers]
        if sorted(number for number in numbers if number is not None) != list(range(count)):
            raise Unfit(f"{count} layers attend {len(layers)} times in a forward")
        first = layers[0]
        for each in layers:
            if (each.heads, each.kv_heads) != (first.heads, first.kv_heads):
                what = f"{each.heads} heads over {each.kv_heads} of keys, unlike layer {first.index}"
                reasons.setdefault(what, []).append(each.index or 0)
    if reasons:
        raise Unfit(*(f"{_numbered(numbers)}: {reason}" for reason, numbers in reasons.items()))
    unknown = [name for name, each in given.items() if name not in _TAKEN and each is not None and each is not False]
    if unknown:
        raise Unfit(f"its decoder gets {', '.join(unknown)}")
    mask = given.get("attention_mask")
    media = len(set(inspect.signature(model.forward).parameters) & {"pixel_values", "input_features"})
    if media and (isinstance(mask, dict) or (mask is not None and mask.dim() > 2)):
        raise Unfit("its masks are made before its decoder, for tokens of pictures that attend to each other")
    ordered = sorted(layers, key=lambda each: each.index or 0)
    forms = tuple(_narrower(each.form, model) for each in ordered)
    width = max(max(each.width, each.value_width) for each in layers)  # narrower ones are filled up with zeros
    return KVLayout(count, first.kv_heads, width, first.dtype, first.heads, forms if any(forms) else ())


def context_of(model: Any) -> int | None:
    """Return how many positions a model has; ``None``: it does not say."""
    most = getattr(model.get_decoder().config, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def _narrower(form: AttentionForm | None, model: Any) -> AttentionForm | None:
    """Return a form without a window that holds all positions of the model."""
    most = context_of(model)
    if form is None or form.window is None or most is None or form.window < most:
        return form
    form = evolve(form, window=None)
    return form if form.names else None


def _numbered(layers: list[int]) -> str:
    numbers = sorted(set(layers))
    named = ", ".join(map(str, numbers[:6])) + (f" and {len(numbers) - 6} more" if len(numbers) > 6 else "")
    return f"layer{'s' if len(numbers) > 1 else ''} {named}" if numbers != [-1] else "layers without a number"


def _own_logits(found: EngineModel, hidden: torch.Tensor) -> torch.Tensor:
    found.plain_head = False
    logits = found.compute_logits(hidden)
    found.plain_head = True
    return logits


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal but for rounding in the first one's dtype."""
    allowed = 2e-4 if one.dtype == torch.float32 else 5e-2
    return one.shape == other.shape and bool((one - other).abs().max() <= allowed * max(1.0, float(other.abs().max())))


def _agrees(found: EngineModel, lines: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    try:
        _compare(found, lines, expected)
    except Exception:
        return False
    return True


def _pack(found: EngineModel, lines: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Lay out the weights of linear layers for products of few rows, if the logits stay as they are."""
    if found.model.device.type != "cpu":
        return
    decoder = found.decoder.module
    before = [(each, *child) for each in decoder.modules() for child in each.named_children()]
    pack_linears(decoder, pack_decoder, trim=False)
    if not _agrees(found, lines, expected):
        for each, name, child in before:
            setattr(each, name, child)
    else:
        before.clear()
        pack_linears(decoder, pack_decoder)  # returns the memory of what was replaced


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


def _compare(found: EngineModel, lines: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Compute texts together on an engine, in pieces, and compare their logits.

    Raises:
        Unfit: they differ.
    """
    prompt = 5
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
    for rows, whole in zip(runner.logits, expected, strict=True):
        if not _equal(torch.stack(rows).to(found.kv_layout.dtype), whole[prompt - 1 :]):
            raise Unfit("its logits are not those of its own forward: something beside attention sees other tokens")
