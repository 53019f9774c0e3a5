"""The entry point of a stage process: :func:`run_stage_process` in a fork of the fork server, or a fresh interpreter:
``python -m omni_core.processes.main DESCRIPTOR LIFELINE [LISTENER]``.

The launch spec is read from an inherited descriptor; a process that other hosts reach inherits its listening TCP socket too.
Its lifeline is a pipe that stays open as long as the parent lives. The process imports only what its spec names.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import selectors
import signal
import sys
import threading
from typing import NoReturn

from omni_core.control.network import Network
from omni_core.forks import keep_from_forks
from omni_core.processes.family import MARK, take_mark
from omni_core.processes.parent import die_with_parent
from omni_core.protocol.codec import decode
from omni_core.protocol.process_messages import ProcessFailedMessage
from omni_core.protocol.specs import ProcessSpec
from omni_core.references import imported, load
from omni_core.services import STAGE_PROCESS
from omni_core.stage_logs import enter_stage, finish_prints, mark_of, send_records

logger = logging.getLogger(__name__)

_TOLD_SECONDS = 5.0
"""The time for the message to another machine that a stage cannot be built."""


def _end_if_orphaned(lifeline: int) -> None:
    """End if the pipe tells of a parent that has ended already, or of one on a system without that signal, which would go unnoticed
    until every stage is built.
    """
    pipe = select.poll()
    pipe.register(lifeline, select.POLLIN)
    if pipe.poll(0):
        os._exit(1)


_ENDING = (signal.SIGTERM, signal.SIGINT)
_masks = threading.local()


def _own_signals_in_forks() -> None:
    """Let the signals of every fork of this process be its own, and end it. Without that they would wake the event loop of this process,
    and end this one instead. They wait while it forks.
    """

    def wait() -> None:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def go_on() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)

    def be_no_stage() -> None:
        signal.set_wakeup_fd(-1)
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        go_on()

    os.register_at_fork(before=wait, after_in_parent=go_on, after_in_child=be_no_stage)


def limit_torch_threads() -> None:
    """Give torch as many threads as ``OMP_NUM_THREADS`` says, by default one. Torch reads it only if it is set before the import."""
    torch = imported("torch")
    if torch is not None:
        threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # of further levels after a comma
        torch.set_num_threads(max(1, int(threads)) if threads.isdecimal() else 1)


def _network(spec: ProcessSpec, listener: int | None) -> Network | None:
    """The way to other machines, if there may be any."""
    if spec.network is None:
        return None
    network: Network = load(spec.network.target)(spec.network.options, listener)
    return network


async def _serve(spec: ProcessSpec, lifeline: int, listener: int | None) -> int:
    from omni_core.processes.worker import Worker
    from omni_core.protocol.error_info import describe

    loop = asyncio.get_running_loop()
    worker = Worker(spec, _network(spec, listener))

    def parent_is_gone() -> None:  # what a stage computes then has no reader
        loop.remove_reader(lifeline)  # it stays readable
        worker.stopped.set()

    loop.add_reader(lifeline, parent_is_gone)
    loop.add_signal_handler(signal.SIGTERM, worker.stopped.set)
    current = [spec.name]

    def begin(stage: str) -> None:
        current[0] = stage
        enter_stage(stage)

    try:
        gpu = next((stage.gpu for stage in spec.stages if stage.gpu is not None), None)
        process = STAGE_PROCESS.given(spec.services) if spec.kernels or gpu is not None else None
        if process is not None:
            process.prepare(spec.kernels, gpu, spec.gpu_memory)
        elif spec.gpu_memory:
            logger.warning("%s", STAGE_PROCESS.missing("gpu_memory does not limit this process: it needs"))
        worker.build(begin)
    except BaseException as error:
        worker.tell_coordinator(ProcessFailedMessage(spec.name, describe(error, current[0])))
        if spec.network is not None:  # connecting takes a while; the runner ends this process when it has read that
            await asyncio.wait([asyncio.ensure_future(worker.stopped.wait())], timeout=_TOLD_SECONDS)
        worker.close()
        return 1
    enter_stage(spec.name)
    limit_torch_threads()
    worker.start()
    if spec.expects_tensors:
        from omni_core.protocol import lazy_torch

        lazy_torch.begin()
    await worker.stopped.wait()
    worker.close()
    return worker.exit_code


def run_stage_process(document: int, lifeline: int, listener: int | None = None) -> NoReturn:
    """Be a stage process until it is told to stop or its parent ends.

    Args:
        document: a descriptor of its launch spec.
        lifeline: of a pipe that ends with its parent.
        listener: of its listening TCP socket, if other hosts reach it.
    """
    os.set_inheritable(lifeline, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    die_with_parent()
    _end_if_orphaned(lifeline)
    with open(document, "rb") as file:
        spec = decode(file.read())
    assert isinstance(spec, ProcessSpec)
    for name, value in spec.env.items():
        os.environ.setdefault(name, value)
    if run_mark := spec.own_env.pop(MARK, ""):
        take_mark(run_mark)
    os.environ.update(spec.own_env)
    _own_signals_in_forks()
    send_records(spec.name, mark_of(spec.endpoint))
    selector = selectors.DefaultSelector()
    if isinstance(selector, selectors.EpollSelector):
        keep_from_forks(selector.fileno())  # what a fork did with its loop, which is a copy, would change this one
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        code = runner.run(_serve(spec, lifeline, listener))
        finish_prints()
        sys.stderr.flush()
        # Everything is closed. Neither a scheduler in a long step nor a thread of the runner's executor must hold the process.
        os._exit(code)


if __name__ == "__main__":
    run_stage_process(*map(int, sys.argv[1:]))
