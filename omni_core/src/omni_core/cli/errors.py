"""Errors as a user of the command line reads them."""

from __future__ import annotations

import os
import re

_FIELD = re.compile(r"^stages\[([^\]]+)\]\.(?!name|next|terminal|wait_for\b|stream_to)([A-Za-z_.]+):", re.MULTILINE)
"""A line about one field of a stage that can be overridden."""


def described(error: Exception) -> str:
    """Return the message of an error, with the flag for each field of a stage that it names: ``--set decoder.gpu_memory=...``."""
    text = _FIELD.sub(r"\g<0> (--set \1.\2=...)", str(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        text = f"{where}{error.strerror or error} (OMNI_DEBUG=1 shows where)"
    try:
        os.getcwd()
    except FileNotFoundError:
        return f"{text}; the working directory has been deleted: change to one that exists"
    return text
