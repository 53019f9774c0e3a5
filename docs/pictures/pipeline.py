"""Draws the pipeline of Qwen3-Omni as docs/pictures/pipeline-light.svg and pipeline-dark.svg: ``python docs/pictures/pipeline.py``."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

WIDTH, HEIGHT = 1180, 388
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


@frozen
class Theme:
    """The colours of one drawing."""

    text: str
    faint: str
    line: str
    surface: str
    border: str
    network: str
    network_border: str
    stream: str
    page: str


THEMES = {
    "light": Theme("#1f2933", "#5b6775", "#8793a1", "#f5f7fa", "#c5ced8", "#e6ecfb", "#7d97e0", "#c2410c", "#ffffff"),
    "dark": Theme("#e6eaf0", "#a3afbd", "#748191", "#1d242d", "#3f4b59", "#1f2b4d", "#6c88d8", "#fb923c", "#0d1117"),
}


@frozen
class Box:
    """A stage: its place, its name, what it does, and whether it is a network."""

    x: int
    y: int
    name: str
    text: str
    network: bool = False
    width: int = 148
    height: int = 64

    @property
    def middle(self) -> int:
        return self.y + self.height // 2

    @property
    def right(self) -> int:
        return self.x + self.width


BOXES = {
    box.name: box
    for box in (
        Box(112, 164, "preprocessing", "tokens, media"),
        Box(306, 72, "image_encoder", "pictures, frames", network=True),
        Box(306, 256, "audio_encoder", "sound", network=True),
        Box(500, 164, "mm_aggregate", "joins inputs"),
        Box(694, 164, "thinker", "writes the text", network=True),
        Box(888, 72, "decode", "tokens to text"),
        Box(694, 308, "talker_ar", "codes of speech", network=True),
        Box(888, 308, "code2wav", "frames to sound", network=True),
    )
}


def arrow(
    theme: Theme, points: list[tuple[int, int]], *, stream: bool = False, label: str = "", at: tuple[int, int] = (0, 0)
) -> str:
    """A line through points with an arrow at its end; a stream is dashed. Corners are rounded."""
    (x, y), *rest = points
    path = f"M{x} {y}"
    for index, (nx, ny) in enumerate(rest):
        if index + 1 < len(rest):  # a corner: stop 10 before it, curve around it
            fx, fy = rest[index + 1]
            before = (nx - 10 * sign(nx - x), ny - 10 * sign(ny - y))
            after = (nx + 10 * sign(fx - nx), ny + 10 * sign(fy - ny))
            path += f" L{before[0]} {before[1]} Q{nx} {ny} {after[0]} {after[1]}"
        else:
            path += f" L{nx} {ny}"
        x, y = nx, ny
    kind, color = ("stream", theme.stream) if stream else ("call", theme.line)
    dash = ' stroke-dasharray="6 5"' if stream else ""
    drawn = f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"{dash} marker-end="url(#{kind})"/>'
    if label:
        drawn += f'<text x="{at[0]}" y="{at[1]}" font-size="13" fill="{color if stream else theme.faint}" text-anchor="middle">{label}</text>'
    return drawn


def sign(value: int) -> int:
    return (value > 0) - (value < 0)


def stage(theme: Theme, box: Box) -> str:
    fill, border = (theme.network, theme.network_border) if box.network else (theme.surface, theme.border)
    center = box.x + box.width // 2
    return (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="10" fill="{fill}" stroke="{border}" stroke-width="1.5"/>'
        f'<text x="{center}" y="{box.y + 28}" font-size="15" font-weight="600" fill="{theme.text}" text-anchor="middle">{box.name}</text>'
        f'<text x="{center}" y="{box.y + 48}" font-size="13" fill="{theme.faint}" text-anchor="middle">{box.text}</text>'
    )


def edges(theme: Theme) -> list[str]:
    of = BOXES
    front, image, audio, join = of["preprocessing"], of["image_encoder"], of["audio_encoder"], of["mm_aggregate"]
    thinker, decode, talker, sound = of["thinker"], of["decode"], of["talker_ar"], of["code2wav"]
    fork, meet, split = front.right + 23, image.right + 23, thinker.right + 23
    return [
        arrow(theme, [(84, front.middle), (front.x - 4, front.middle)]),
        arrow(
            theme,
            [(front.right, front.middle), (fork, front.middle), (fork, image.middle), (image.x - 4, image.middle)],
        ),
        arrow(
            theme,
            [(front.right, front.middle), (fork, front.middle), (fork, audio.middle), (audio.x - 4, audio.middle)],
        ),
        arrow(theme, [(front.right, front.middle), (join.x - 4, join.middle)]),
        arrow(
            theme, [(image.right, image.middle), (meet, image.middle), (meet, join.middle), (join.x - 4, join.middle)]
        ),
        arrow(
            theme, [(audio.right, audio.middle), (meet, audio.middle), (meet, join.middle), (join.x - 4, join.middle)]
        ),
        arrow(theme, [(join.right, join.middle), (thinker.x - 4, thinker.middle)]),
        arrow(
            theme,
            [
                (thinker.right, thinker.middle),
                (split, thinker.middle),
                (split, decode.middle),
                (decode.x - 4, decode.middle),
            ],
            stream=True,
            label="tokens",
            at=(split + 30, thinker.middle - 14),
        ),
        arrow(
            theme,
            [(thinker.x + 74, thinker.y + thinker.height), (talker.x + 74, talker.y - 4)],
            stream=True,
            label="embeddings",
            at=(thinker.x + 122, thinker.y + thinker.height + 46),
        ),
        arrow(
            theme,
            [(talker.right, talker.middle), (sound.x - 4, sound.middle)],
            stream=True,
            label="codes",
            at=(talker.right + 22, talker.middle - 12),
        ),
        arrow(theme, [(decode.right, decode.middle), (1088, decode.middle)], stream=True),
        arrow(theme, [(sound.right, sound.middle), (1088, sound.middle)], stream=True),
    ]


def ends(theme: Theme) -> list[str]:
    """Draw the inputs and the outputs."""
    lines = ["text", "images", "audio", "video"]
    drawn = [
        f'<text x="76" y="{170 + 20 * number}" font-size="15" fill="{theme.text}" text-anchor="end">{line}</text>'
        for number, line in enumerate(lines)
    ]
    for name, text in (("decode", "text"), ("code2wav", "speech")):
        drawn.append(f'<text x="1096" y="{BOXES[name].middle + 5}" font-size="15" fill="{theme.text}">{text}</text>')
    return drawn


def legend(theme: Theme) -> list[str]:
    """The title, and what the shapes mean."""
    y = 31
    drawn = [
        f'<text x="112" y="36" font-size="15" font-weight="600" fill="{theme.text}">Qwen3-Omni as a pipeline</text>'
    ]
    for x, fill, border, text in (
        (392, theme.network, theme.network_border, "network, on CPU or GPU"),
        (600, theme.surface, theme.border, "function"),
    ):
        drawn += [
            f'<rect x="{x}" y="{y - 7}" width="18" height="14" rx="4" fill="{fill}" stroke="{border}" stroke-width="1.5"/>',
            f'<text x="{x + 26}" y="{y + 5}" font-size="13" fill="{theme.faint}">{text}</text>',
        ]
    line = f'<path d="M694 {y} L732 {y}" stroke="{theme.stream}" stroke-width="2" stroke-dasharray="6 5"/>'
    text = f'<text x="740" y="{y + 5}" font-size="13" fill="{theme.faint}">stream: sent while the stage computes</text>'
    return [*drawn, line, text]


def drawing(theme: Theme) -> str:
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{color}"/></marker>'
        for name, color in (("call", theme.line), ("stream", theme.stream))
    )
    title = "<title>Requests go through preprocessing, the encoders they need and the aggregation to the thinker, which streams tokens to decode and embeddings to the talker; the talker streams codes to code2wav.</title>"
    parts = [*edges(theme), *(stage(theme, box) for box in BOXES.values()), *ends(theme), *legend(theme)]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" font-family="{FONT}">'
        f'\n{title}\n<defs>{heads}</defs>\n<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="{theme.page}"/>'
        f"\n{body}\n</svg>\n"
    )


def main() -> None:
    for name, theme in THEMES.items():
        Path(__file__).with_name(f"pipeline-{name}.svg").write_text(drawing(theme))


if __name__ == "__main__":
    main()
