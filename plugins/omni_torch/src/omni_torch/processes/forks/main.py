"""The fork server's program: ``python -m omni_torch.processes.forks.main DESCRIPTOR``. See :mod:`omni_torch.processes.forks.server`.

It imports what stage processes ask for, once for all of them, and forks them. It must have no threads and use no GPU, as neither
survives a fork; it looks before each fork and refuses if that has happened.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from typing import NoReturn

from attrs import frozen

from omni_core.runtime_api import die_with_parent, load_libraries

_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_SET_NAME, _PR_GET_TID_ADDRESS = 15, 40
_CLONE = {"x86_64": (56, 3), "aarch64": (220, 4)}
"""By machine: the number of the system call ``clone``, and the position of its argument ``child_tid``."""

_REQUEST_BYTES = 65536
_PROBLEM_LETTERS = 500
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


@frozen
class _Request:
    """A process to fork: its name, what must be imported before, and its standard error, spec, lifeline and listener."""

    number: int
    name: str
    preload: list[str]
    descriptors: list[int]


def fork_sibling() -> int:
    """Fork like :func:`os.fork`, but make the new process a child of this one's parent, which can then wait for it.

    This is what the C library's ``fork`` does in a process without other threads, with one more flag.

    Raises:
        OSError: the system does not offer that.
    """
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    number, position = _CLONE.get(os.uname().machine, (0, 0))
    tid = ctypes.c_void_p()
    if not number or libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(tid), 0, 0, 0):
        raise OSError("this system cannot fork for another process")
    arguments = [ctypes.c_void_p(_CLONE_PARENT | _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID | signal.SIGCHLD)]
    arguments += [tid if index == position else ctypes.c_void_p() for index in range(1, 5)]
    libc.syscall.restype = ctypes.c_long
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(ctypes.c_long(number), *arguments)
    error = ctypes.get_errno()
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid


def set_title(title: str) -> None:
    """Set what ``top`` and ``ps -o comm`` call this process: the command line is that of the server. 15 bytes are kept."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode(), 0, 0, 0)


def obstacle() -> str:
    """Return what was done in this process that forbids to fork it; empty if nothing was."""
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        return f"{threads} threads were started"
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # that of the listing itself
            continue
        if target.startswith(_DEVICES):
            return f"{target} was opened"
    return ""


class _ForkServer:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting: list[_Request] = []
        self._failures: dict[str, str] = {}
        """By module whose import was tried: what was wrong, or nothing."""
        self._problem = ""

    def serve(self) -> None:
        """Fork what is asked for until the parent closes the connection. What can be forked without a further import goes first."""
        if not self._receive():
            return
        loading = threading.Thread(target=load_libraries)
        if any("torch" in each.preload for each in self._waiting):
            loading.start()  # beside the import of what every process needs
        from omni_core.runtime_api import Worker, run_stage_process  # noqa: F401 - what every stage process needs

        if loading.ident is not None:
            loading.join()
        while self._receive():
            request = min(self._waiting, key=lambda each: len(self._missing(each)))
            missing = self._missing(request)
            if missing:
                self._import(missing[0])
                continue
            self._waiting.remove(request)
            self._fork(request)
            for descriptor in request.descriptors:
                os.close(descriptor)

    def _receive(self) -> bool:
        """Read the requests that have come; wait for one if there is nothing to do. False at the end of the connection."""
        while True:
            flags = socket.MSG_CMSG_CLOEXEC | (socket.MSG_DONTWAIT if self._waiting else 0)
            try:
                # recvmsg and not socket.recv_fds, which ignores the flags.
                data, controls, got, _ = self._connection.recvmsg(_REQUEST_BYTES, socket.CMSG_LEN(4 * 4), flags)
            except BlockingIOError:
                return True
            if not data:
                return False
            descriptors = [each for _, _, raw in controls for each in memoryview(raw).cast("i")]
            number, name, preload = json.loads(data)
            if got & socket.MSG_CTRUNC:  # the limit of open files: some descriptors are lost
                for each in descriptors:
                    os.close(each)
                self._reply(number, 0, "the limit of open files is reached (ulimit -n)")
                continue
            self._waiting.append(_Request(number, name, preload, descriptors))

    def _missing(self, request: _Request) -> list[str]:
        return [name for name in request.preload if name not in self._failures and name not in sys.modules]

    def _import(self, module: str) -> None:
        self._failures[module] = ""
        try:
            importlib.import_module(module)
        except BaseException as error:
            self._failures[module] = f"{module} cannot be imported: {type(error).__name__}: {error}"
        if not self._problem and (found := obstacle()):
            self._problem = f"{found} by an import of {module}"

    def _fork(self, request: _Request) -> None:
        problem, pid = self._problem or obstacle(), 0
        if not problem:
            gc.freeze()  # a collection in the child would write to every object, and so copy the memory
            try:
                pid = fork_sibling()
            except OSError as error:
                problem = str(error)
            else:
                if not pid:
                    self._become(request)
                problem = "; ".join(filter(None, (self._failures.get(each) for each in request.preload)))
        self._reply(request.number, pid, problem)

    def _reply(self, number: int, pid: int, problem: str) -> None:
        """Tell the parent. The message of an import can be long, a reply is one packet."""
        self._connection.send(json.dumps([number, pid, problem[:_PROBLEM_LETTERS]]).encode())

    def _become(self, request: _Request) -> NoReturn:
        """Be the stage process."""
        try:
            self._connection.close()
            for other in self._waiting:
                for descriptor in other.descriptors:
                    os.close(descriptor)
            from omni_core.runtime_api import run_stage_process

            os.setpgid(0, 0)
            stderr, *own = request.descriptors
            os.dup2(stderr, 2)
            os.close(stderr)
            set_title(f"omni:{request.name}")
            if "numpy.random" in sys.modules:
                sys.modules["numpy.random"].seed()  # else all forks would draw the same numbers
            gc.enable()
            run_stage_process(*own)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)


def main() -> None:
    """Serve until the parent closes the connection or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    set_title("omni:forks")
    gc.disable()  # nothing is thrown away here, and imports are faster
    _ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
