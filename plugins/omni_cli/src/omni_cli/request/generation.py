"""Parameters, metadata and voices of a request, as the flags of ``omni run`` set them."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from omni_core.protocol.messages import OmniRequest


@frozen
class Generation:
    """Everything of a request that is not its messages."""

    params: dict[str, Any] = field(factory=dict)
    modalities: list[str] | None = None
    metadata: dict[str, Any] = field(factory=dict)
    timeout: float | None = None
    references: list[dict[str, Any]] = field(factory=list)

    def request(self, messages: list[dict[str, Any]]) -> OmniRequest:
        """Make the request for a conversation."""
        inputs: dict[str, Any] = {"messages": messages}
        if self.references:
            inputs["references"] = self.references
        return OmniRequest(inputs, self.params, self.modalities, self.metadata, timeout=self.timeout)
