"""Guards for forks of this process: by a fork of a program that holds a pipeline, or of a stage (``multiprocessing``), its
sockets would be written twice, and their ends not be seen; and threads, which it uses, are not there.
"""

from __future__ import annotations

import os

from omni_core.errors import OmniError

_descriptors: set[int] = set()


def keep_from_forks(descriptor: int) -> int:
    """Make a descriptor useless in every later fork; return it. :func:`forget` it before it is closed."""
    _descriptors.add(descriptor)
    return descriptor


def forget(descriptor: int) -> None:
    """Forget a descriptor, whose number others will have."""
    _descriptors.discard(descriptor)


def check_process(pid: int) -> None:
    """Return if this is the process that has opened a pipeline.

    Raises:
        OmniError: it is another one.
    """
    if os.getpid() != pid:
        raise OmniError(
            f"the pipeline was opened in process {pid} and cannot be used in its fork {os.getpid()}; open one in this process"
        )


def _in_fork() -> None:
    if _descriptors:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in _descriptors:  # not closed: objects in the fork still hold the numbers
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)
        _descriptors.clear()


os.register_at_fork(after_in_child=_in_fork)
