"""Parameters, metadata and voices of a request, as the flags of ``omni run`` set them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from omni_core.api import OmniRequest


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
        from omni_core.api import OmniRequest  # 30 ms, for which `--help` need not wait

        inputs: dict[str, Any] = {"messages": messages}
        if self.references:
            inputs["references"] = self.references
        return OmniRequest(inputs, self.params, self.modalities, self.metadata, timeout=self.timeout)
