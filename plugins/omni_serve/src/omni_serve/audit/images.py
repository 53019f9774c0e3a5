"""Checks of ``/v1/images/generations`` and ``/v1/images/edits``: their answers, their previews, and what they refuse."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from omni_serve.audit.errors import in_form
from omni_serve.audit.subject import EDITS, IMAGES, Fault, NotOffered, Subject, decoded, message_of

_PREVIEWS = 2


async def whole(subject: Subject) -> str:
    """Ask for an image, and open it."""
    subject.need_images()
    answer = (await subject.post(IMAGES, subject.image_body())).json()
    if not isinstance(answer.get("created"), int):
        raise Fault(f"created is {answer.get('created')!r}, not a time in seconds")
    if len(answer["data"]) != 1:
        raise Fault(f"data has {len(answer['data'])} images, not the one that was asked for")
    kind, size = _opened(answer["data"][0])
    if answer.get("size", size) != size:
        raise Fault(f"the answer says {answer['size']}, the image has {size}")
    return f"{kind}, {size}"


async def formats(subject: Subject) -> str:
    """Ask for each format, and look at what comes."""
    subject.need_images()
    good, refused = [], []
    for name in ("png", "jpeg", "webp"):
        answer = await subject.remote.http.post(IMAGES, json=subject.image_body(output_format=name))
        if answer.status_code == 400:
            refused.append(name)
            continue
        if answer.status_code != 200:
            raise Fault(f"{name}: {answer.status_code}: {message_of(answer)}")
        kind, _ = _opened(answer.json()["data"][0])
        if kind != name:
            raise Fault(f"{name} was asked for, and {kind} came")
        good.append(name)
    return f"{', '.join(good)}{'; refused: ' + ', '.join(refused) if refused else ''}"


async def order(subject: Subject) -> str:
    """Look at the events of a stream with previews, one after the other."""
    subject.need_images()
    body = subject.image_body(stream=True, partial_images=_PREVIEWS)
    found = await subject.stream(IMAGES, body, optional=True)
    kinds = [data["type"] for _, data in found]
    if kinds[-1:] != ["image_generation.completed"] or kinds.count(kinds[-1]) != 1:
        raise Fault(f"the events are {', '.join(kinds)}; one 'image_generation.completed' must be the last")
    if set(kinds[:-1]) - {"image_generation.partial_image"} or len(kinds) > _PREVIEWS + 1:
        raise Fault(f"before the image there are {', '.join(kinds[:-1])}, not at most {_PREVIEWS} previews")
    indices = [data.get("partial_image_index") for _, data in found[:-1]]
    if indices != list(range(len(indices))):
        raise Fault(f"the previews are numbered {indices}, not from 0 on")
    for name, data in found:
        if name and name != data["type"]:
            raise Fault(f"an event is called {name!r}, its data {data['type']!r}")
    sizes = {_opened(data)[1] for _, data in found}
    if len(sizes) != 1:
        raise Fault(f"the previews and the image have the sizes {', '.join(sorted(sizes))}")
    return f"{len(indices)} previews, and the image"


async def refusals(subject: Subject) -> str:
    """Ask for what cannot be made: a size that is none, and no images at all."""
    subject.need_images()
    for name, value in (("size", "as large as you like"), ("n", 0)):
        in_form(await subject.remote.http.post(IMAGES, json=subject.image_body(**{name: value})), 400, names=name)
    return "400 for a size that is none and for 0 images, both named"


async def edit(subject: Subject) -> str:
    """Send an image that is to be changed, none, and a broken one."""
    subject.need_images()
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 60, 60)).save(file, "PNG")
    fields = {"model": subject.model, "prompt": subject.prompt}
    answer = await _edited(subject, fields, file.getvalue())
    if answer.status_code in (400, 404):
        raise NotOffered(f"{EDITS} is refused with {answer.status_code}: {message_of(answer)}")
    if answer.status_code != 200:
        raise Fault(f"{EDITS} answers {answer.status_code}: {message_of(answer)}")
    kind, size = _opened(answer.json()["data"][0])
    in_form(await _edited(subject, fields, None), 400, names="image")
    in_form(await _edited(subject, fields, b"not a picture"), 400, names="image")
    return f"{kind}, {size}; without an image, and with a broken one, 400"


async def _edited(subject: Subject, fields: dict[str, str], image: bytes | None) -> Any:
    # A form without files is a form, too: httpx writes one with boundaries only if there is a file.
    parts: list[Any] = [(name, (None, value)) for name, value in fields.items()]
    parts += [] if image is None else [("image", ("image.png", image, "image/png"))]
    return await subject.remote.http.post(EDITS, files=parts)


def _opened(data: dict[str, Any]) -> tuple[str, str]:
    """Return the format and the size of an image in base64.

    Raises:
        Fault: it is not base64, or no image.
    """
    content = decoded(data.get("b64_json"))
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "WEBP")) as image:
            image.load()
            return str(image.format).lower(), f"{image.width}x{image.height}"
    except (OSError, SyntaxError, ValueError):
        raise Fault(f"b64_json is no image; it begins with {content[:8].hex(' ')}") from None
