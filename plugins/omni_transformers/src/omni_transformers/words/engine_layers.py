"""The attention that the layers of a decoder ask for, found out by running the model's own forward once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from attrs import define, evolve, field
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from omni_core.api import AttentionForm, KVLayout
from omni_torch.api import pack_decoder, pack_linears
from omni_transformers.words.blocks import blocks_of
from omni_transformers.words.engine_model import NAME, Decoder, attending

EXAMINED = "omni-examined"
"""As :data:`omni_transformers.words.engine_model.NAME`, with masks, whose functions are looked at."""

_KNOWN = {"scaling", "sliding_window", "softcap", "s_aux", "dropout", "is_causal", "position_ids", "use_cache"}
TAKEN = {
    *("input_ids", "inputs_embeds", "attention_mask", "position_ids", "past_key_values", "cache", "use_cache"),
    *("cache_position", "return_dict", "output_attentions", "output_hidden_states", "logits_to_keep"),
}
"""Arguments of a decoder that the engine gives itself, or that change nothing."""

_FARTHEST = 2**20
"""No window of a model is as wide."""


class Unfit(Exception):
    """A model does not fit the engine. ``reasons`` in words."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


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


_masks: ContextVar[_Masks] = ContextVar("masks")


def _mask(**given: Any) -> Any:
    given.pop("batch_size", None)
    return _masks.get().make(**given)


AttentionInterface.register(EXAMINED, AttentionInterface()[NAME])
AttentionMaskInterface.register(EXAMINED, _mask)


@define
class Layer:
    """A layer by what it asked of its attention: how many keys, the heads of queries and keys, the widths of keys and values."""

    attention: nn.Module
    index: int | None
    keys: int
    heads: int
    kv_heads: int
    width: int
    value_width: int
    dtype: torch.dtype
    scale: float | None
    form: AttentionForm | None
    reason: str | None


def looked_at(layers: list[Layer]) -> Callable[..., torch.Tensor]:
    """Return an attention function that adds each layer that calls it, and computes nothing. For :data:`EXAMINED`."""

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, given: dict[str, Any]
    ) -> torch.Tensor:
        form, reason = None, None
        unknown = [name for name, each in given.items() if name not in _KNOWN and each not in (None, False)]
        try:
            form = AttentionForm(_masks.get().window(mask), given.get("softcap"), given.get("s_aux"))
        except Unfit as unfit:
            reason = str(unfit)
        if not reason and unknown:
            reason = f"attention with {unknown[0]}"
        index = getattr(module, "layer_idx", None)
        sizes = key.shape[2], query.shape[1], key.shape[1], key.shape[3], value.shape[3]
        named = form if form is not None and form.names else None
        layers.append(Layer(module, index, *sizes, key.dtype, given.get("scaling"), named, reason))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])

    return attend


@contextmanager
def masks_kept() -> Iterator[None]:
    """Keep the masks that are made for :data:`EXAMINED`, so that their functions can be looked at."""
    token = _masks.set(_Masks())
    try:
        yield
    finally:
        _masks.reset(token)


def examined(model: Any, decoder: Decoder, ids: torch.Tensor) -> tuple[list[Layer], dict[str, Any], torch.Tensor]:
    """Run a model's own forward; return its layers, the decoder's arguments, and hidden states ``[n, hidden]``."""
    layers: list[Layer] = []
    arguments: dict[str, Any] = {}
    hidden: list[torch.Tensor] = []

    def decode(given: dict[str, Any]) -> Any:
        arguments.update(given)
        output = decoder.run(**given)
        hidden.append(output[0][0])
        return output

    decoder.attend_by(EXAMINED)
    with masks_kept(), attending(looked_at(layers)), decoder.instead(decode):
        model(input_ids=ids.unsqueeze(0), attention_mask=torch.ones_like(ids).unsqueeze(0), use_cache=False)
    if len(hidden) != 1:
        raise Unfit(f"a forward runs its decoder {len(hidden)} times")
    return layers, arguments, hidden[0]


def layout_of(model: Any, layers: list[Layer], given: dict[str, Any]) -> KVLayout:
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
    unknown = [name for name, each in given.items() if name not in TAKEN and each is not None and each is not False]
    if unknown:
        raise Unfit(f"its decoder gets {', '.join(unknown)}")
    mask = given.get("attention_mask")
    media = len(set(inspect.signature(model.forward).parameters) & {"pixel_values", "input_features"})
    blocks = bool(media) and (isinstance(mask, dict) or (mask is not None and mask.dim() > 2))
    if blocks and not hasattr(model, "create_masks_for_generate"):
        raise Unfit("its masks are made before its decoder, for tokens of pictures that attend to each other")
    ordered = sorted(layers, key=lambda each: each.index or 0)
    forms = tuple(_narrower(each.form, model) for each in ordered)
    if blocks:
        types = torch.zeros(1, 64, dtype=torch.long)
        types[:, 8 : 8 + min((form.window for form in forms if form and form.window), default=48)] = (
            1  # a picture in a window
        )
        try:
            blocks_of(
                model, {"input_ids": torch.zeros_like(types), "token_type_ids": types, "mm_token_type_ids": types}
            )
        except RuntimeError as error:
            raise Unfit(str(error)) from error
        forms = tuple(evolve(each or AttentionForm(), blocks=True) for each in forms)
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


def pack_layers(decoder: Any, compare: Callable[[], object]) -> None:
    """Lay out the weights of a decoder's linear layers for products of few rows, if its output stays as it is.

    Args:
        compare: raises an error if it does not.
    """
    if next(decoder.parameters()).device.type != "cpu":
        return
    before = [(each, *child) for each in decoder.modules() for child in each.named_children()]
    pack_linears(decoder, pack_decoder, trim=False)
    try:
        compare()
    except Exception:
        for each, name, child in before:
            setattr(each, name, child)
    else:
        before.clear()
        pack_linears(decoder, pack_decoder)  # returns the memory of what was replaced
