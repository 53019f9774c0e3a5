"""A class that a sender registers with the codec and no receiver does."""

from attrs import frozen

from omni_core.protocol.codec import register


@register
@frozen
class Secret:
    value: int
