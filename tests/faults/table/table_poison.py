# ruff: noqa: F401 - expressions use the imports
"""Deeds of a guilty request where it is told to: it raises, returns, does not return, starts children, or harms its process.

Every kind is named by the expression that does it.
"""

from __future__ import annotations

import asyncio
import collections
import ctypes
import dataclasses
import multiprocessing
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, reduce
from itertools import product
from typing import Any

import msgpack
import numpy as np
from fault_stages import Nameless, broken_syntax_error

from omni_core.errors import InvalidRequestError, OverloadedError, RequestFailedError, StageFailedError


def raises(error: Any) -> Any:
    raise error


def exits(*_: Any) -> Any:
    raise SystemExit


def interrupts(*_: Any) -> Any:
    raise KeyboardInterrupt


def recurses(*_: Any) -> Any:
    return recurses()


def is_5(*_: Any) -> Any:
    return 5


def made(base: type = Exception, meta: type = type, **attributes: Any) -> Any:
    """Return an instance of a new class with hostile attributes."""
    return meta("Hostile", (base,), attributes)(*(["x"] if issubclass(base, BaseException) else []))


def nested(wrap: Callable[[Any], Any], value: Any = 0, times: int = 5000) -> Any:
    return reduce(lambda inner, _: wrap(inner), range(times), value)


def write_to_sockets(frame: bytes) -> None:
    """Write to every socket of this process, as code does that has closed a descriptor twice."""
    for descriptor in range(3, 256):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, frame)


def forked(again: bool = False) -> int:
    """Return the pid of a child that sleeps, or that has left a child which does."""
    pid = os.fork()
    if pid == 0:
        if not again or os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    return os.waitpid(pid, 0)[0] if again else pid


def started() -> int | None:
    kept.append(fork.Process(target=time.sleep, args=(1000,)))
    kept[-1].start()
    return kept[-1].pid


def end(pid: int | None) -> None:
    """End a child as ``Process.terminate`` does; it must."""
    assert pid
    os.kill(pid, signal.SIGTERM)
    if not select.select([os.pidfd_open(pid)], [], [], 5)[0]:
        raise TimeoutError("the child does not end")
    os.waitpid(pid, 0)


def use_a_pool() -> None:
    with fork.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]


Kinds = dict[str, Callable[[], Any]]
fork = multiprocessing.get_context("fork")
kept: list[Any] = []


def kinds(text: str, form: str = "{}") -> Kinds:
    """Return what evaluates each expression, by the expression."""
    parts = [" ".join(each.split()) for each in text.split(";")]
    return {part: partial(eval, form.format(part), globals()) for part in parts}


ERRORS = """ValueError("plain"); SystemExit(3); KeyboardInterrupt(); MemoryError(); GeneratorExit(); asyncio.CancelledError();
StopIteration(1); StopAsyncIteration(); TimeoutError(); BrokenPipeError(); KeyError(object()); InvalidRequestError("bad");
Nameless(); broken_syntax_error(); StageFailedError.__new__(StageFailedError); ValueError("\\ud800"); ValueError("x" * 20_000_000);
RequestFailedError.__new__(RequestFailedError); OverloadedError.__new__(OverloadedError); recurses();
made(__class__=property(lambda _: StageFailedError)); made(__cause__=property(lambda self: self));
ValueError(made(object, __repr__=exits, __str__=exits)); made(__notes__=[made(object, __str__=exits), 5]);
made(__str__=lambda _: time.sleep(3)); nested(lambda inner: BaseExceptionGroup("group", [inner]), SystemExit(3), 500)"""
METHODS = ("__str__", "__repr__", "__getattribute__", "__del__", "__eq__", "__hash__", "__bool__", "__reduce__")
FIELDS = ("__cause__", "__context__", "__notes__", "args", "__class__", "__traceback__", "__dict__")
META = ("__instancecheck__", "__subclasscheck__", "__getattribute__", "__repr__", "__str__", "__hash__")
BOMBS = ("exits", "interrupts", "recurses", "is_5")
ERRORS += "".join(f"; made({name}={bomb})" for name, bomb in product(METHODS, BOMBS))
ERRORS += "".join(f"; made({name}=property({bomb}))" for name, bomb in product(FIELDS, BOMBS))
ERRORS += "".join(f"; made(meta=type('Meta', (type,), dict({name}=exits)))" for name in META)
RAISED = kinds(ERRORS, "raises({})")
RETURNED = kinds("""object(); exits; (each for each in "ab"); (exits() for each in "ab"); os; threading.Lock(); socket.socket(); 1j;
float("nan"); {float("nan"): 1, float("nan"): 2}; {made(str, __str__=exits, encode=exits): 1}; made(object, __bool__=exits);
made(object, __eq__=exits, __hash__=object.__hash__); made(object, __class__=property(exits));
made(dict, items=exits, __iter__=exits, __len__=exits); made(list, __iter__=exits, __len__=exits);
collections.namedtuple("Pair", "left right")(1, 2); dataclasses.make_dataclass("Plain", ["field"])(1); msgpack.ExtType(99, b"x");
np.array([object()]); np.zeros(2, [("a", "i4")]); "x" * 20_000_000; b"x" * 20_000_000; 10**5000; {"\\ud800": "\\ud800"};
[[]] * 2_000_000; nested(lambda value: [value]); nested(lambda value: (value,)); nested(lambda value: {"in": value});
nested(lambda value: frozenset([value])); (lambda value: value.append(value) or value)([]);
(lambda value: value.update(value=value) or value)({})""")  # fmt: skip
ENDLESS = kinds("any(0 for _ in iter(int, 1)); time.sleep(3600); any(iter(int, 1)); threading.Event().wait()")
"""The third holds the interpreter's lock."""
KILLERS = kinds("os.kill(os.getpid(), 9); ctypes.string_at(0); os._exit(3)")
CLOSES = kinds("os.closerange(3, 4096)")
CHILDREN = kinds("use_a_pool(); end(started()); end(forked()); end(subprocess.Popen(['sleep', '1001']).pid)")
LEFT = kinds("""kept.append(fork.Pool(2)); kept.append(forked()); kept.append(forked(again=True));
kept.append(subprocess.Popen(["sleep", "1002"])); kept.append(subprocess.Popen(["sleep", "1003"], start_new_session=True))""")  # fmt: skip
FRAMES = {  # of 512 MiB, not 4 GiB: a reader that believes them takes no more
    "large raw bytes": struct.pack("<II", 5, 2**29) + b"\xc1" * 5,
    "large document": struct.pack("<II", 2**29, 0) + b"\xc1" * 64,
    "no msgpack": struct.pack("<II", 5, 0) + b"\xc1" * 5,
    "no message": struct.pack("<II", 1, 0) + b"\x01",
    "a part": struct.pack("<II", 500, 500) + b"x" * 10,
}
STRAY: Kinds = {name: partial(write_to_sockets, frame) for name, frame in FRAMES.items()}
KINDS = RAISED | RETURNED | ENDLESS | KILLERS | STRAY | CLOSES | CHILDREN | LEFT


def act(data: dict[str, Any], place: str, otherwise: Any = None) -> Any:
    """Do what the request asks for at ``place``; return what that returned, or ``otherwise``."""
    where, kind = data.get("poison") or ("", "")
    returned = KINDS[kind]() if where == place else None
    return otherwise if returned is None else returned
