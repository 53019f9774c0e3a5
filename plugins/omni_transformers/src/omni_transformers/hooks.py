"""The kind of component by which other distributions add models: adapters. Light: imports neither torch nor transformers."""

from __future__ import annotations

from attrs import field, frozen

from omni_core.api import Component, hookspec


@frozen
class AdapterComponent(Component):
    """A model that needs words of its own.

    Attributes:
        architectures: the ``architectures`` in the ``config.json`` of its checkpoints.
        claims: ``(config) -> bool``: claims a checkpoint with the architecture of another model, by its ``config.json`` as a dict, such as
            a language model that writes the codes of a codec. It imports neither torch nor transformers.
    """

    architectures: tuple[str, ...] = field(default=(), kw_only=True)
    claims: str | None = field(default=None, kw_only=True)


@hookspec(kind="adapter of transformers", level=1, component=AdapterComponent)
def omni_transformers_adapters() -> list[Component]:
    """Adapters. Target: an object of a light module with ``interface(source) -> Interface`` and ``stages(source, given) -> [StageConfig]``,
    such as an :class:`omni_transformers.api.Speaks`.

    They are asked before the models of this distribution. ``omni_transformers.api`` has what they share. Example::

        @hookimpl
        def omni_transformers_adapters():
            return [AdapterComponent("orpheus", "my_orpheus.light:ORPHEUS", "Orpheus", claims="my_orpheus.light:claims")]
    """
    return []
