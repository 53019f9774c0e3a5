"""Conformance of a payload projection: a result that can be sent, in a container of its own; an unchanged input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from omni_core.api import OmniRequest, StagePayload, load
from omni_core.runtime_api import decode, encode


class ProjectionConformance:
    """Subclass it, name the projection, and give it payloads.

    Attributes:
        projection: its reference, ``"package.module:function"``.
    """

    projection: ClassVar[str]

    def payloads(self) -> list[Any]:
        """Return the data of payloads that it may get; new objects at every call."""
        raise NotImplementedError

    def request(self) -> OmniRequest:
        """Return the request that they belong to."""
        return OmniRequest()

    def call(self, function: Callable[..., Any], data: Any) -> Any:
        """Call the function as the runtime does; a merge, for example, gets a dict of payloads."""
        return function(StagePayload("r", self.request(), data))

    def _project(self, data: Any) -> Any:
        result = self.call(load(self.projection), data)
        return result.data if isinstance(result, StagePayload) else result

    def test_its_result_can_be_sent(self) -> None:
        for data in self.payloads():
            document = encode(self._project(data))
            decode(document)

    def test_it_leaves_its_input_as_it_is(self) -> None:
        for data in self.payloads():
            before = encode(data)
            self._project(data)
            assert encode(data) == before, "the projection has changed its input, which other stages get too"

    def test_it_gives_the_same_again(self) -> None:
        for one, other in zip(self.payloads(), self.payloads(), strict=True):
            assert encode(self._project(one)) == encode(self._project(other))

    def test_its_container_is_its_own(self) -> None:
        for data in self.payloads():
            result = self._project(data)
            if isinstance(result, dict | list):
                assert result is not data, "several stages would get one container; return a new one"
                assert result is not self._project(data), "two calls have returned one container"
