"""The entry point of omni-media."""

from __future__ import annotations

from omni_core.api import ServiceComponent, hookimpl


@hookimpl
def omni_services() -> list[ServiceComponent]:
    """Return the reader of media."""
    return [ServiceComponent("media", "omni_media.reader:Reader", "files, data and URLs in messages", slot="media")]
