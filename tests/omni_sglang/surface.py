"""Compares the adapter's use of SGLang with the installed SGLang, by reading the adapter's source.

Every imported name, every attribute read of one of SGLang's objects and every argument passed to one of its functions
is looked up. So a new version of SGLang is reported as a list of changes, not as a traceback from somewhere inside.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
REQUEST = "sglang.srt.managers.schedule_batch:Req"
BATCH = "sglang.srt.managers.schedule_batch:ScheduleBatch"
FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"
WORKER = "sglang.srt.managers.tp_worker:TpModelWorker"

VARIABLES = {
    "scheduler": SCHEDULER,
    "self._scheduler": SCHEDULER,
    "req": REQUEST,
    "batch": BATCH,
    "forward_batch": FORWARD_BATCH,
    "plan": "sglang.srt.managers.schedule_batch:NextBatchPlan",
    "watchdog": "sglang.srt.utils.watchdog:WatchdogRaw",
    "output": "sglang.srt.managers.io_struct:AbortReq",
    "sampling": "sglang.srt.sampling.sampling_params:SamplingParams",
    "arguments": "sglang.srt.server_args:ServerArgs",
}
"""The types of the adapter's variables of these names."""

ATTRIBUTES = {
    (SCHEDULER, "tree_cache"): "sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache",
    (SCHEDULER, "token_to_kv_pool_allocator"): "sglang.srt.mem_cache.allocator:BaseTokenToKVPoolAllocator",
    (SCHEDULER, "tp_worker"): WORKER,
    (SCHEDULER, "running_batch"): BATCH,
    (SCHEDULER, "last_batch"): BATCH,
    (SCHEDULER, "chunked_req"): REQUEST,
    (WORKER, "model_runner"): "sglang.srt.model_executor.model_runner:ModelRunner",
    (REQUEST, "kv"): "sglang.srt.managers.schedule_batch:ReqKvInfo",
    (FORWARD_BATCH, "forward_mode"): "sglang.srt.model_executor.forward_batch_info:ForwardMode",
}
"""Their attributes that are SGLang's objects too."""

OURS = {(SCHEDULER, "replies")}
"""Attributes that the adapter adds."""


def load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def problems(source: str) -> list[str]:
    """Return one line for everything that ``source`` uses of SGLang and that does not exist."""
    tree = ast.parse(source)
    imported = dict(_imports(tree))
    found = []
    for reference in {*imported.values(), *VARIABLES.values(), *ATTRIBUTES.values()}:
        try:
            load(reference)
        except (ImportError, AttributeError) as error:
            found.append(f"{reference}: {error}")
    if found:  # what is gone altogether cannot be looked into
        return sorted(found)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = _type_of(node.value)
            if owner is not None and (owner, node.attr) not in OURS and not _has(load(owner), node.attr):
                found.append(f"{owner}.{node.attr}: gone (line {node.lineno})")
        elif isinstance(node, ast.Call):
            found.extend(_arguments(node, imported))
    return sorted(set(found))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("sglang"):
            for alias in node.names:
                yield alias.name, f"{node.module}:{alias.name}"


def _type_of(node: ast.expr) -> str | None:
    """Return the class of SGLang of an expression's value, as far as the tables say."""
    if ast.unparse(node) in VARIABLES:
        return VARIABLES[ast.unparse(node)]
    if isinstance(node, ast.Attribute):
        owner = _type_of(node.value)
        return ATTRIBUTES.get((owner, node.attr)) if owner is not None else None
    return None


def _has(owner: type, name: str) -> bool:
    """Return True if a class has an attribute: on itself, as an annotated field, or assigned in one of its methods."""
    if hasattr(owner, name):
        return True
    for cls in owner.__mro__:
        if name in getattr(cls, "__annotations__", {}) or name in getattr(cls, "__slots__", ()):
            return True
        if cls.__module__.startswith("sglang") and name in _assigned(cls):
            return True
    return False


@cache
def _assigned(cls: type) -> set[str]:
    """Return the attributes that a class's methods assign on ``self``."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def _arguments(call: ast.Call, imported: dict[str, str]) -> Iterator[str]:
    """Return the arguments of a call that its function does not take."""
    method = isinstance(call.func, ast.Attribute)
    if isinstance(call.func, ast.Name) and call.func.id in imported:
        name, function = imported[call.func.id], load(imported[call.func.id])
    elif isinstance(call.func, ast.Attribute) and (owner := _type_of(call.func.value)) is not None:
        name, function = f"{owner}.{call.func.attr}", getattr(load(owner), call.func.attr, None)
    else:
        return
    if function is None:
        return
    parameters = dict(inspect.signature(function).parameters)
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    given = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    for argument in given:
        if argument not in parameters:
            yield f"{name}({argument}=...): no such argument (line {call.lineno})"
    spreads = any(keyword.arg is None for keyword in call.keywords)
    positional = list(parameters)[: len(call.args) + method]
    for each, parameter in parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL,)
        if needed and not spreads and each not in given and each not in positional:
            yield f"{name}({each}=...): now required (line {call.lineno})"
