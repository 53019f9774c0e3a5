"""A decoder of transformers whose own forward computes positions of several sequences in one line, with the engine's attention."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.api import CacheAttention, KVLayout
from omni_torch.api import FewRowsLinear, PagedSequences, few_rows_linear
from omni_transformers.words.engine_layers import EXAMINED, Layer, Unfit, looked_at, masks_kept, pack_layers
from omni_transformers.words.engine_model import NAME, Decoded, Door, attended, attending

_CROSS = re.compile("encoder_attn|encoder_decoder_attn|cross_attn|crossattention|cross_attention")

_MEDIA = re.compile("pixel_values|input_features|input_values|image|video")

CACHES = "past_key_values", "cache"
"""Names of the cache of transformers, before and since 5.24."""

[_CACHE] = {*CACHES} & {each.name for each in fields(Decoded)}
"""That of a decoder's output."""

_GIVEN = {
    *(*CACHES, "position_ids", "attention_mask", "use_cache", "cache_position", "return_dict"),
    *("encoder_hidden_states", "encoder_attention_mask", "logits_to_keep", "output_hidden_states"),
}
"""Arguments of a call that are not handed on as they are."""

Memory = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Keys and values of every layer's cross-attention, ``[m, kv_heads, head_dim]`` each."""


class Untaken(Exception):
    """A call that the model must compute itself. The text says why."""


class Packed:
    """A decoder, examined and compared with its own forward.

    Args:
        module: the decoder.
        head: the layer that makes logits of its output; ``None``: none.

    Attributes:
        decoder: a door in front of it.
        head: a door in front of the head.
        layout: of its keys and values.
        context: the positions that it has; ``None``: it does not say.
        remembered: the positions that its encoder has; ``None``: it does not say.

    Raises:
        Unfit: it does not fit; it is as it was.
    """

    def __init__(self, module: Any, head: Any = None) -> None:
        self.decoder, weight = Door(module), next(module.parameters())
        self.device, self._dtype = weight.device, weight.dtype
        self.head = Door(head) if isinstance(head, nn.Linear) else None
        config = getattr(module, "config", None)
        self.context = _number(config, "max_target_positions", "max_position_embeddings")
        self.remembered = _number(config, "max_source_positions")
        self._configs = {id(each.config): each.config for each in module.modules() if hasattr(each, "config")}
        self._names = set(inspect.signature(self.decoder.run).parameters)
        if "input_ids" not in self._names or not self._names & {*CACHES}:
            raise Unfit("its decoder takes no ids and no cache")
        if media := sorted(each for each in self._names if _MEDIA.search(each)):
            raise Unfit(f"its decoder takes {media[0]} itself")
        if not hasattr(module, "config"):
            raise Unfit("its decoder has no config")
        self._positions: Door | None = None
        if "position_ids" not in self._names:
            if not hasattr(module, "embed_positions"):
                raise Unfit("its decoder takes no position_ids")
            self._positions = Door(module.embed_positions)
        self._table = self._padding = torch.empty(0)
        self._last: Any = None
        self._places: dict[Any, tuple[int, bool]] = {}
        self._crossing = next(
            (
                each.in_features
                for name, each in module.named_modules()
                if isinstance(each, nn.Linear) and _CROSS.search(name) and "k" in name.rpartition(".")[2]
            ),
            None,
        )
        try:
            self.layout = self._examined()
            self._compare()
            pack_layers(module, self._compare)
            if self.head is not None and few_rows_linear.replaced(self.device.type, self._dtype):
                self._last = FewRowsLinear(head.weight.detach(), head.bias)
        except Unfit:
            raise
        except Exception as error:
            raise Unfit(f"it does not run there: {type(error).__name__}: {error}") from error

    def run(
        self, arguments: dict[str, torch.Tensor], positions: torch.Tensor, attention: CacheAttention, lengths: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute positions of sequences, one sequence after the other in each argument.

        Args:
            positions: ``[n]``.
            lengths: positions of each sequence.

        Returns:
            The decoder's output ``[n, hidden]``, and the logits of each sequence's last position ``[sequences, vocab]``.
        """
        width = self.layout.head_dim

        def attend(
            module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, given: dict[str, Any]
        ) -> torch.Tensor:
            layer, crosses = self._places[module]
            if not crosses:
                return attended(attention, layer, width, query, key, value, given.get("scaling"))

            def recall(layer: int, query: Any, key: Any, value: Any, scale: float | None) -> torch.Tensor:
                mixed: torch.Tensor = attention.recall(layer, query, scale)
                return mixed

            return attended(recall, layer, width, query, key, value, given.get("scaling"))

        given: dict[str, Any] = {**arguments}
        if self._crossing is not None:
            given["encoder_hidden_states"] = torch.zeros(1, 1, self._crossing, device=self.device, dtype=self._dtype)
        hidden: torch.Tensor = self._forward(given, positions, NAME, attend)[0]
        if self.head is None:
            return hidden, None
        ends = torch.tensor(lengths, device=hidden.device).cumsum(0) - 1
        return hidden, (self._last or self.head.run)(hidden[ends])

    def arguments(self, given: dict[str, Any], seen: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return the arguments of a call that are handed on, and its positions ``[n]``.

        Args:
            seen: positions before it.
        """
        found = {name: each for name, each in given.items() if name not in _GIVEN and isinstance(each, torch.Tensor)}
        positions = given.get("position_ids")
        if positions is None:
            positions = torch.arange(seen, seen + _first(given).shape[1], device=self.device)
        return found, positions.reshape(-1)

    def memory(self, given: dict[str, Any], cache: Any) -> Memory | None:
        """Return what a first call remembers of an encoder's output; ``None``: the decoder has no cross-attention.

        Raises:
            Untaken: the model must compute it itself.
        """
        if cache.get_seq_length():
            raise Untaken("its cache was begun elsewhere")
        rows, count = _first(given).shape[:2]
        if rows > 1:
            raise Untaken("it gets several rows")
        for name, each in given.items():
            if name not in _GIVEN and each is not None and each is not False and not isinstance(each, torch.Tensor):
                raise Untaken(f"it gets {name}")
        mask, places = given.get("attention_mask"), given.get("position_ids")
        if mask is not None and (isinstance(mask, dict) or mask.dim() != 2 or not bool(mask.all())):
            raise Untaken("it gets a mask")
        if places is not None and (places.dim() != 2 or places.shape[1] != count):
            raise Untaken("it gets positions of several axes")
        if self._crossing is None:
            return None
        states, seen = given.get("encoder_hidden_states"), given.get("encoder_attention_mask")
        if states is None:
            raise Untaken("it gets no encoder's output")
        if seen is not None and (seen.shape != states.shape[:2] or not bool(seen.any())):
            raise Untaken("it gets a mask of the encoder's output")
        return self._memory(states[0] if seen is None else states[0, seen[0].bool()])

    @staticmethod
    def output(hidden: torch.Tensor, cache: Any, given: dict[str, Any]) -> Any:
        """Return a decoder's output; of its hidden states, the last."""
        last = (hidden,) if given.get("output_hidden_states") else None
        return Decoded(last_hidden_state=hidden, hidden_states=last, **{_CACHE: cache})

    def _forward(
        self, given: dict[str, Any], positions: torch.Tensor, name: str, attend: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """Run the decoder without a cache; return its output ``[1, n, hidden]``."""
        placed: AbstractContextManager[None] = nullcontext()
        if self._positions is None:
            given = {**given, "position_ids": positions.unsqueeze(0)}
        else:
            if (most := int(positions.max()) + 1) > len(self._table):
                self._table = self._rows(max(most, min(2 * most, self.context or most)))
            found = self._table[positions]
            ids, padding = given.get("input_ids"), getattr(self._positions.module, "padding_idx", None)
            if ids is not None and padding is not None:
                found = torch.where((ids[0] == padding).unsqueeze(1), self._padding, found)
            placed = self._positions.instead(lambda given: found.unsqueeze(0))
        if "use_cache" in self._names:
            given = {**given, "use_cache": False}
        with placed, self._attending_by(name), attending(attend):
            output: torch.Tensor = self.decoder.run(**given)[0]
        return output

    @contextmanager
    def _attending_by(self, name: str) -> Iterator[None]:
        """Let its layers call an attention function of transformers' table. Its encoder may read the same configs."""
        before = [(each, each._attn_implementation_internal) for each in self._configs.values()]
        try:
            for config, _ in before:
                config._attn_implementation_internal = name
            yield
        finally:
            for config, own in before:
                config._attn_implementation_internal = own

    def _rows(self, count: int) -> torch.Tensor:
        """Return what a decoder adds to embeddings at the first positions, ``[count, hidden]``; padding has its own row in some."""
        assert self._positions is not None
        padding = getattr(self._positions.module, "padding_idx", None)
        ids = torch.full((1, count), 1 if padding == 0 else 0, device=self.device)
        if padding is not None:
            self._padding = self._positions.run(torch.full((1, 1), padding, device=self.device)).reshape(1, -1)
        rows: torch.Tensor = self._positions.run(ids)
        return rows.reshape(count, -1)

    @torch.inference_mode()
    def _memory(self, states: torch.Tensor) -> Memory:
        """Return the keys and values that each layer's cross-attention makes of an encoder's output ``[m, hidden]``."""
        found: dict[int, list[torch.Tensor]] = {}

        def attend(
            module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, given: dict[str, Any]
        ) -> torch.Tensor:
            layer, crosses = self._places[module]
            if crosses:
                parts = (each[0].transpose(0, 1) for each in (key, value))
                found[layer] = [F.pad(each, (0, self.layout.head_dim - each.shape[2])) for each in parts]
            return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])

        given = {**self._sample(1, torch.Generator()), "encoder_hidden_states": states.unsqueeze(0).clone()}
        self._forward(given, torch.arange(1, device=self.device), NAME, attend)
        ordered = [found[layer] for layer in sorted(found)]
        return [keys for keys, _ in ordered], [values for _, values in ordered]

    def _sample(self, count: int, chance: torch.Generator) -> dict[str, Any]:
        """Return inputs at random, of one row."""
        config = self.decoder.module.config
        if "inputs_embeds" in self._names and self._positions is None:
            width = int(getattr(config, "hidden_size", 0) or config.d_model)
            given = torch.randn(1, count, width, generator=chance)
            return {"inputs_embeds": given.to(self.device, self._dtype)}
        channels = [config.num_channels] if hasattr(config, "num_channels") else []
        ids = torch.randint(0, config.vocab_size, (1, count, *channels), generator=chance)
        return {"input_ids": ids.to(self.device)}

    @torch.inference_mode()
    def _examined(self) -> KVLayout:
        """Return the layout of its layers, as its own forward shows them.

        Raises:
            Unfit: their attention is none of the engine's.
        """
        count, memory = 5, 7
        layers: list[Layer] = []
        given = self._sample(count, torch.Generator().manual_seed(0))
        if self._crossing is not None:
            given["encoder_hidden_states"] = torch.zeros(
                1, memory, self._crossing, device=self.device, dtype=self._dtype
            )
        with masks_kept():
            self._forward(given, torch.arange(count, device=self.device), EXAMINED, looked_at(layers))
        own = [each for each in layers if each.keys == count]
        crossing = [each for each in layers if each.keys == memory]
        if reasons := {each.reason for each in own if each.reason is not None}:
            raise Unfit(*sorted(reasons))
        if not own or len(own) + len(crossing) < len(layers) or len(crossing) not in (0, len(own)):
            raise Unfit(f"{len(own)} of its layers attend to their own positions, {len(crossing)} to an encoder's")
        if len({each.attention for each in layers}) < len(layers):
            raise Unfit("a layer attends twice")
        if len({(each.kv_heads, each.dtype) for each in layers}) > 1 or bool(crossing) != (self._crossing is not None):
            raise Unfit("its layers have unequal heads")
        for found, crosses in ((own, False), (crossing, True)):
            self._places |= {each.attention: (number, crosses) for number, each in enumerate(found)}
        forms = tuple(each.form for each in own)
        first, width = own[0], max(max(each.width, each.value_width) for each in layers)
        return KVLayout(
            len(own),
            first.kv_heads,
            width,
            first.dtype,
            first.heads,
            forms if any(forms) else (),
            memory=bool(crossing),
        )

    @torch.inference_mode()
    def _compare(self) -> None:
        """Compute two sequences together, in pieces; compare them with its own forward.

        Raises:
            Unfit: they differ.
        """
        chance, names, lengths = torch.Generator().manual_seed(0), ["a", "b"], [9, 6]
        sequences = PagedSequences(self.layout, self.device, 64, 2, block_size=4)
        given = [self._sample(count, chance) for count in lengths]
        expected: list[torch.Tensor] = []
        for name, each, count in zip(names, given, lengths, strict=True):
            whole = {**each}
            if self._crossing is not None:
                states = torch.randn(count - 2, self._crossing, generator=chance).to(self.device, self._dtype)
                whole["encoder_hidden_states"] = states.unsqueeze(0).clone()  # a model may write into it
            sequences.begin(name, None if self._crossing is None else self._memory(states))
            if "use_cache" in self._names:
                whole["use_cache"] = False
            expected.append(self.decoder.run(**whole)[0][0])
        found: list[list[torch.Tensor]] = [[], []]
        done = [0, 0]
        for pieces in ([4, 3], [1, 1], [1, 1], [1, 1], [2, 0]):
            asked = [number for number, piece in enumerate(pieces) if piece]
            wanted = {names[number]: pieces[number] for number in asked}
            planned = sequences.plan(wanted)
            counts = [wanted[name] for name in planned]
            spans = {number: slice(done[number], done[number] + pieces[number]) for number in asked}
            arguments = {
                name: torch.cat([given[number][name][:, spans[number]] for number in asked], 1) for name in given[0]
            }
            positions = torch.cat([torch.arange(spans[number].start, spans[number].stop) for number in asked])
            hidden, _ = self.run(arguments, positions.to(self.device), sequences.attention(planned, counts), counts)
            sequences.computed(planned, counts)
            for number, part in zip(asked, hidden.split(counts), strict=True):
                found[number].append(part)
                done[number] += pieces[number]
        allowed = 1e-4 if self._dtype == torch.float32 else 0.1
        for parts, own in zip(found, expected, strict=True):
            if not float((torch.cat(parts).float() - own.float()).norm() / own.float().norm()) <= allowed:
                raise Unfit("its output is not that of its own forward: something beside attention sees other tokens")


def _first(given: dict[str, Any]) -> torch.Tensor:
    """Return the first argument of a call that has rows and positions."""
    names = ("inputs_embeds", "input_ids")
    found = next((given[name] for name in names if given.get(name) is not None), None)
    if found is None:
        found = next(each for name, each in given.items() if name not in _GIVEN and isinstance(each, torch.Tensor))
    return found


def _number(config: Any, *names: str) -> int | None:
    found = (getattr(config, name, None) for name in names)
    return next((each for each in found if isinstance(each, int) and each > 0), None)


def cache_of(given: dict[str, Any]) -> Any:
    """Return the cache of transformers among the arguments of a call."""
    return next((given[name] for name in CACHES if given.get(name) is not None), None)
