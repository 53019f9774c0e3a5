"""A digest of a request's content, by which requests that end their process are known again."""

from __future__ import annotations

import hashlib

from omni_core.errors import is_interrupt
from omni_core.protocol.codec import encode
from omni_core.protocol.messages import OmniRequest


def digest_of(request: OmniRequest) -> bytes | None:
    """Return a digest of a request's content, or ``None`` where it cannot be encoded."""
    try:
        body = encode([request.inputs, request.params, request.modalities, request.metadata])
    except BaseException as error:
        if is_interrupt(error):
            raise
        return None
    return hashlib.blake2b(body, digest_size=16).digest()
