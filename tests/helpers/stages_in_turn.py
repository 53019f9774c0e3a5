"""The stages of the pipeline without processes: requests in, latents and pixels out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, Scheduler
from omni_core.stage.groups import Groups
from omni_diffusion.parts import parts
from omni_diffusion.qwen_image.decoder import create_decoder
from omni_diffusion.qwen_image.denoiser import create_denoiser
from omni_diffusion.qwen_image.encoder import create_encoder
from omni_diffusion.qwen_image.interface import INTERFACE, with_adapters


class Stages:
    """The three stages of a checkpoint."""

    def __init__(self, checkpoint: Path, **options: Any) -> None:
        self.encode = create_encoder(str(checkpoint))
        self.denoise = create_denoiser(str(checkpoint), **options)
        self.decode = create_decoder(str(checkpoint))
        self._interface = with_adapters(INTERFACE, list(options.get("adapters", {})))

    def run(self, *requests: dict[str, Any]) -> list[tuple[Any, Any]]:
        """Return the packed latents and the pixels of requests that come together."""
        asked = {f"r{number}": self._payload(f"r{number}", each) for number, each in enumerate(requests)}
        latents = self._through(self.denoise, self._through(self.encode, asked, parts))
        pixels = self._through(self.decode, latents)
        return [(latents[name].data["latents"], pixels[name].data.pixels) for name in asked]

    def _payload(self, name: str, given: dict[str, Any]) -> StagePayload:
        content: list[dict[str, Any]] = [{"type": "text", "text": given["prompt"]}]
        if "image" in given:
            content.append({"type": "image", "image": given["image"]})
        params = {key: value for key, value in given.items() if key not in ("prompt", "image")}
        inputs = {"messages": [{"role": "user", "content": content}]}
        return StagePayload(name, OmniRequest(inputs, self._interface.check_params(params)))

    def _through(
        self, scheduler: Scheduler, payloads: dict[str, StagePayload], expand_fn: Any = None
    ) -> dict[str, StagePayload]:
        groups = Groups("stage", expand_fn)
        for name, payload in payloads.items():
            message = IncomingMessage(name, "new_request", payload, None, None, payload.request.without_inputs())
            for part in groups.expand(message):
                scheduler.inbox.put(part)
                if scheduler is self.decode:
                    scheduler.inbox.put(IncomingMessage(name, "stream_done"))
        results: dict[str, StagePayload] = {}
        while len(results) < len(payloads):
            assert scheduler.turn()  # type: ignore[attr-defined]
            for output in scheduler.outbox.drain():
                if output.type == "error":
                    raise output.data
                whole = groups.collect(output)
                if whole is not None and whole.type == "result":
                    given = payloads[whole.request_id]
                    results[whole.request_id] = StagePayload(
                        given.request_id, given.request.without_inputs(), whole.data
                    )
        return results
