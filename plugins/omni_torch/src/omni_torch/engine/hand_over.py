"""Keys and values of a request out of the paged cache, for another stage, and those of another stage into it (decision 0019)."""

from __future__ import annotations

import torch

from omni_core.api import ARRequest, ConfigError, InvalidRequestError, ModelRunner
from omni_torch.engine.key_values import KeyValues, gathered
from omni_torch.engine.kv_cache import KVCache
from omni_torch.loop.packing import ids
from omni_torch.runners.model_runner import ARModelRunner


def check_ranks(runner: ModelRunner, tp_size: int) -> None:
    """Raise ConfigError if the runner hands over keys and values, but does not say which heads its ranks hold."""
    if isinstance(runner, ARModelRunner) and runner.hands_over and runner.parallel.size != tp_size:
        raise ConfigError(
            f"tp_size: {tp_size}, but {type(runner).__name__}.parallel has {runner.parallel.size} ranks; a runner that hands over keys "
            "and values sets it to its model's ranks"
        )


def export(cache: KVCache, runner: ARModelRunner, request: ARRequest) -> KeyValues:
    """Return a copy of a request's computed positions; see :meth:`ARModelRunner.export_key_values`.

    Raises:
        InvalidRequestError: nothing has been computed.
    """
    count = request.computed
    if not count:
        raise InvalidRequestError(
            "no position of the request has been computed, so there are no keys and values to hand over"
        )
    slots = cache.slots(request.request_id, 0, count)
    if isinstance(slots, torch.Tensor):
        slots = slots.to(cache.kept.device)
    keys, values = (
        gathered(torch.stack([layer[slots] for layer in each]), runner.parallel, runner.kv_heads)
        for each in (cache.keys, cache.values)
    )
    hidden = cache.kept[slots].clone() if runner.exports_hidden else None
    return KeyValues(keys, values, ids(request, 0, count), count + request.position_delta, hidden)


def given_to(runner: ModelRunner, request: ARRequest) -> KeyValues | None:
    """Return this rank's heads of the keys and values that another stage has computed for a request, checked.

    Raises:
        ConfigError: they are not those of such a model.
        InvalidRequestError: they leave no position of the prompt to compute.
    """
    if not isinstance(runner, ARModelRunner) or not runner.hands_over:
        return None
    given = runner.past_key_values(request)
    if given is None:
        return None
    if not 0 < given.positions < len(request.prompt_ids):
        raise InvalidRequestError(
            f"key_values: {given.positions} positions were handed over, and the prompt has {len(request.prompt_ids)}; it must have at "
            "least one more, and at least one must be handed over"
        )
    width = 0 if given.hidden is None else given.hidden.shape[1]
    if runner.kept_width and width != runner.kept_width:
        raise ConfigError(
            f"key_values: hidden states of width {width} were handed over; this stage needs {runner.kept_width} values beside them"
        )
    return given.share(runner.parallel, runner.model.kv_layout)


def restore(cache: KVCache, runner: ModelRunner, request: ARRequest) -> None:
    """Write what another stage has computed into the first slots of an admitted request."""
    given = given_to(runner, request)
    if given is None:
        return
    slots = cache.slots(request.request_id, 0, given.positions)
    if isinstance(slots, torch.Tensor):
        slots = slots.to(cache.kept.device)
    for layer, (key, value) in enumerate(zip(given.keys, given.values, strict=True)):
        cache.keys[layer][slots], cache.values[layer][slots] = key.to(cache.kept.device), value.to(cache.kept.device)
    if runner.kept_width and given.hidden is not None:
        cache.kept[slots] = given.hidden.to(cache.kept.device)
