"""Processes that simulate for another one."""

from __future__ import annotations

import os
from multiprocessing import parent_process

from omni_core.processes.parent import die_with_parent


def end_with_parent() -> None:
    """End this process with the one that started it, now if that has ended while this one was starting: no signal tells of that."""
    die_with_parent()
    parent = parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)
