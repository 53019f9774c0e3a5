"""``POST /v1/images/generations`` and ``/v1/images/edits``: images of a prompt, or of an image and an instruction, whole or with previews.

What a request may have follows from what the pipeline declares: ``image`` among its outputs, for edits among its inputs too, and its
parameters (``width`` and ``height`` are given as ``size``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal, cast

from attrs import define, field
from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from omni_core.api import ImageChunk, ImageResult, InvalidRequestError, OmniRequest, Parameter
from omni_serve.bodies import Base64, RawRoute, body_of, schema
from omni_serve.calls import Call
from omni_serve.errors import ApiError, invalid, placed
from omni_serve.forms import form_schema, read_form, typed, upload
from omni_serve.media import check_media
from omni_serve.parameters import NEUTRAL, merged
from omni_serve.pictures import FORMATS, encoded
from omni_serve.server import Server, key_of, server_of
from omni_serve.streams import Stream, encoded_event, media_response, unless_gone

router = APIRouter(route_class=RawRoute, tags=["images"])

_DEFAULTS: dict[str, Any] = {"n": 1, "size": "auto", "output_format": "png", "stream": False, "partial_images": 0}

_NULL = BeforeValidator(lambda value, info: _DEFAULTS[info.field_name] if value is None else value)
"""Take ``null`` as not given."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "background": ("auto", "opaque"),
    "moderation": ("auto",),
    "quality": ("auto", "standard"),
    "response_format": ("b64_json",),
    "style": ("natural",),
}
"""Values that change nothing, where the pipeline has no parameter of the name."""


class ImageRequest(BaseModel):
    """A prompt. Further keys are parameters of the pipeline."""

    model_config = ConfigDict(extra="allow", strict=True)

    prompt: str = Field(min_length=1)
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=10), _NULL] = 1
    size: Annotated[str, Field(pattern=r"^(auto|[1-9]\d{0,4}x[1-9]\d{0,4})$"), _NULL] = "auto"
    output_format: Annotated[Literal["png", "webp", "jpeg"], _NULL] = "png"
    output_compression: int | None = Field(None, ge=0, le=100)
    stream: Annotated[bool, _NULL] = False
    partial_images: Annotated[int, Field(ge=0), _NULL] = 0
    extra_body: dict[str, Any] | None = None


@router.post("/v1/images/generations", openapi_extra=schema(ImageRequest))
async def create_image(request: Request) -> Response:
    """Make images of a prompt."""
    server = server_of(request)
    _check_offered(server, "image" in server.interface.outputs, "makes no images")
    asked = await body_of(request, ImageRequest)
    return await _answered(server, request, Images.make(server, request, asked, [], "image_generation"))


@router.post(
    "/v1/images/edits",
    openapi_extra=form_schema(
        {name: "binary" if name == "image" else "string" for name in ("image", *ImageRequest.model_fields)},
        ["image", "prompt"],
    ),
)
async def create_image_edit(request: Request) -> Response:
    """Make images of given ones and an instruction."""
    server = server_of(request)
    interface = server.interface
    _check_offered(server, "image" in interface.outputs and "image" in interface.inputs, "edits no images")
    fields, files = await _form(server, request)
    limits = server.settings.limits
    given = []
    for name, file in files:
        try:
            data = await upload(file, name, limits.media_mib)
            await asyncio.to_thread(check_media, "image", data, name, limits)
        except ApiError as error:
            error.param = name
            raise
        given.append({"type": "image", "data": data})
    if not given:
        raise invalid("image: a file is needed", "image", "missing_required_parameter")
    if len(given) > limits.media_parts:
        raise invalid(f"image: {len(given)} files are over the limit of {limits.media_parts}", "image")
    asked = ImageRequest.model_validate(fields)
    return await _answered(server, request, Images.make(server, request, asked, given, "image_edit"))


async def _answered(server: Server, request: Request, images: Images) -> Response:
    if images.asked.stream:
        return Stream(images.events(), "text/event-stream", events=True, ping_seconds=server.settings.ping_seconds)
    return await media_response(await unless_gone(request, images.whole()))


def _check_offered(server: Server, offered: bool, lacks: str) -> None:
    if not offered:
        outputs = ", ".join(server.interface.outputs) or "other data"
        raise invalid(f"This pipeline {lacks}; it answers in {outputs}.", code="unsupported_operation")


async def _form(server: Server, request: Request) -> tuple[dict[str, Any], list[tuple[str, UploadFile]]]:
    """Return the fields of an edit, each in the type that it has in JSON, and the files of its images.

    Raises:
        ApiError: 400, a field is given twice, is no file or is one, or is of another type.
    """
    form = await read_form(request)
    fields: dict[str, Any] = {}
    files: list[tuple[str, UploadFile]] = []
    types = {name: parameter.type for parameter in server.interface.params for name in parameter.names}
    types |= {"n": "integer", "partial_images": "integer", "output_compression": "integer", "stream": "boolean"}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name not in ("image", "image[]"):
                raise invalid(
                    f"{name}: this server does not honour this file; image is one", name, "unsupported_parameter"
                )
            files.append((name, value))
        elif name in ("image", "image[]"):
            raise invalid(f"{name}: must be a file", name, "invalid_type")
        elif name in fields:
            raise invalid(f"{name}: given twice", name, "invalid_value")
        else:
            fields[name] = typed(name, value, types.get(name, "string"))
    return fields, files


class _ImageCall(Call):
    """A call whose pieces are previews, and the images."""

    def _piece(self, data: Any) -> Any:
        if isinstance(data, ImageResult) and not data.frames_per_second:
            self.notices += data.notices
            self.server.metrics.images.inc(len(data.pixels))
            return data
        return data if isinstance(data, ImageChunk) and data.pixels is not None else None


@define(eq=False)
class Images:
    """One request for images, ready to run. ``kind``: the first word of its events."""

    asked: ImageRequest
    call: Call
    kind: str
    created: int = field(factory=lambda: int(time.time()))

    @classmethod
    def make(
        cls, server: Server, request: Request, asked: ImageRequest, given: list[dict[str, Any]], kind: str
    ) -> Images:
        """Check a request and translate it for the pipeline.

        Raises:
            ApiError: the request is at fault.
        """
        arrived = time.perf_counter()
        if asked.model is not None:
            server.check_model(asked.model)
        limit = server.settings.limits.text_characters
        if len(asked.prompt) > limit:
            message = f"prompt: {len(asked.prompt)} characters are over the limit of {limit}"
            raise ApiError(413, message, param="prompt", code="string_above_max_length")
        declared = {name: each for each in server.interface.params for name in each.names}
        extra = merged(asked.model_extra, asked.extra_body, ImageRequest.model_fields)
        parameters = server.parameters.read(
            {**extra, **_parameters(asked, declared)}, ImageRequest.model_fields, _NEUTRAL
        )
        server.apply_session(request, parameters.metadata)
        content = [*given, {"type": "text", "text": asked.prompt}]
        inputs = {"messages": [{"role": "user", "content": content}]}
        omni = OmniRequest(inputs, parameters.params, ["image"], parameters.metadata)
        call = _ImageCall(server, key_of(request), omni, speech=False, body=request.scope["omni.body"], arrived=arrived)
        return cls(asked, call, kind)

    async def whole(self) -> dict[str, Any]:
        """Return OpenAI's answer.

        Raises:
            ApiError: the request failed, or the pipeline made no images.
        """
        async with aclosing(self._pieces()) as pieces:
            results = [piece async for piece in pieces if isinstance(piece, ImageResult)]
        if not results:
            raise ApiError(500, "The pipeline has answered without an image.", code="no_image")
        data = [
            each | ({"seed": seeds} if seeds is not None else {})
            for result in results
            for each, seeds in zip(await self._encoded(result.pixels), _seeds(result), strict=True)
        ]
        return {"created": self.created, "data": data, "background": "opaque", **self._facts(results[0])}

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield OpenAI's events: previews, and the image."""
        index = 0
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                encoded_images = await self._encoded(piece.pixels)
                facts = {"created_at": self.created, "background": "opaque", "quality": "auto", **self._facts(piece)}
                if isinstance(piece, ImageChunk):
                    kind = f"{self.kind}.partial_image"
                    data = {"type": kind, **encoded_images[0], "partial_image_index": index, **facts}
                    index += 1
                else:
                    kind = f"{self.kind}.completed"
                    seeds = [seed for seed in _seeds(piece) if seed is not None]
                    data = {"type": kind, **encoded_images[0], **facts, "usage": _NO_TOKENS}
                    data |= {"seed": seeds[0]} if seeds else {}
                yield await encoded_event(data, kind)

    async def _pieces(self) -> AsyncGenerator[ImageChunk | ImageResult]:
        content = self.call.request.inputs["messages"][0]["content"]
        with placed({f"messages[0].content[{len(content) - 1}]": "prompt", "messages[0].content": "image"}):
            async with aclosing(cast(AsyncGenerator[ImageChunk | ImageResult], self.call.pieces())) as pieces:
                async for piece in pieces:
                    yield piece

    async def _encoded(self, pixels: Any) -> list[dict[str, Base64]]:
        asked = self.asked
        made = await asyncio.to_thread(encoded, pixels, asked.output_format, asked.output_compression)
        return [{"b64_json": Base64(each)} for each in made]

    def _facts(self, piece: ImageChunk | ImageResult) -> dict[str, str]:
        _, height, width, _ = piece.pixels.shape
        return {"output_format": self.asked.output_format, "size": f"{width}x{height}"}


_NO_TOKENS = {
    "input_tokens": 0,
    "output_tokens": 0,
    "total_tokens": 0,
    "input_tokens_details": {"text_tokens": 0, "image_tokens": 0},
}
"""The usage of an event, which OpenAI's form demands: pipelines of images count no tokens."""


def _seeds(result: ImageResult) -> list[int | None]:
    """Return the seed of each image; ``None`` where the pipeline names none of its own. One for several images is that of all."""
    count, seeds = len(result.pixels), result.seeds
    if len(seeds) == count:
        return list(seeds)
    return [seeds[0] if len(seeds) == 1 else None] * count


def _parameters(asked: ImageRequest, declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return what the request's own fields are as parameters of the pipeline.

    Raises:
        ApiError: 400, a field that the pipeline has no parameter for, or a value that it does not take.
    """
    if asked.output_compression is not None and asked.output_format not in FORMATS:
        raise invalid("output_compression: only with output_format webp or jpeg", "output_compression", "invalid_value")
    if asked.partial_images and not asked.stream:
        raise invalid("partial_images: only with stream: true", "partial_images", "invalid_value")
    if asked.stream and asked.n > 1:
        raise invalid(
            f"n: a stream has one image, {asked.n} are asked for; leave out stream or n", "n", "invalid_value"
        )
    given: dict[str, Any] = {}
    if asked.n > 1:
        given |= _checked("n", asked.n, declared, "n")
    if asked.partial_images:
        given |= _checked("partial_images", asked.partial_images, declared, "partial_images")
    if asked.size != "auto":
        for name, side in zip(("width", "height"), map(int, asked.size.split("x")), strict=True):
            given |= _checked(name, side, declared, "size")
    return given


def _checked(name: str, value: int, declared: Mapping[str, Parameter], field_name: str) -> dict[str, Any]:
    """Return a parameter by its own name; an error has the name of the request's field."""
    if name not in declared:
        raise invalid(f"{field_name}: this pipeline has no such choice", field_name, "unsupported_parameter")
    try:
        declared[name].check(value, f"{field_name}: {name}" if field_name != name else field_name)
    except InvalidRequestError as error:
        raise invalid(str(error), field_name, "invalid_value") from None
    return {name: value}
