"""The commands within a chat, and their completion: names, paths, voices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attrs import frozen
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from omni_cli.chat.paths import MEDIA, kind_of


@frozen
class SlashCommand:
    """A command within a chat: its name, what follows it, and a line of help."""

    name: str
    argument: str
    help: str


COMMANDS = (
    SlashCommand("/image", "FILE...", "add pictures to the next message, as dropped files are"),
    SlashCommand("/audio", "FILE...", "add recordings"),
    SlashCommand("/video", "FILE...", "add videos"),
    SlashCommand("/mic", "", "record a turn with the microphone"),
    SlashCommand("/system", "[TEXT]", "set the system message; without TEXT, remove it"),
    SlashCommand("/voice", "[NAME]", "choose the voice; without NAME, list the voices"),
    SlashCommand("/retry", "", "ask for the last answer again"),
    SlashCommand("/save", "FILE", "save the last speech (.wav, .mp3) or the chat (.md, .json)"),
    SlashCommand("/reset", "", "forget the conversation"),
    SlashCommand("/help", "", "show this list"),
    SlashCommand("/quit", "", "leave; so do quit, exit, Ctrl-C and Ctrl-D"),
)

NAMES = tuple(each.name for each in COMMANDS)


def split(line: str) -> tuple[str, str]:
    """Return a line's first word and the rest."""
    word, _, rest = line.strip().partition(" ")
    return word, rest.strip()


def help_lines() -> Iterator[str]:
    """Yield the help of the chat."""
    heads = [f"{each.name} {each.argument}".rstrip() for each in COMMANDS]
    width = max(map(len, heads)) + 2
    for head, each in zip(heads, COMMANDS, strict=True):
        yield f"{head:{width}}{each.help}"
    yield f"{'Alt-Enter':{width}}begin a new line in the message"
    yield f"{'Tab':{width}}complete commands, files and voices"


class SlashCompleter(Completer):
    """Completes commands, the paths after those that take files, and voices after ``/voice``.

    Args:
        voices: returns the names of the voices.
    """

    def __init__(self, voices: Callable[[], Sequence[str]]) -> None:
        self._voices = voices
        self._saving = PathCompleter(expanduser=True)
        self._files = {f"/{kind}": PathCompleter(expanduser=True, file_filter=_filter(kind)) for kind in MEDIA}

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor.lstrip()
        if not text.startswith("/") or "\n" in text:
            return
        word, space, rest = text.partition(" ")
        if not space:
            for each in COMMANDS:
                if each.name.startswith(word):
                    yield Completion(each.name, -len(word), display_meta=each.help)
        elif word == "/voice":
            for voice in self._voices():
                if voice.casefold().startswith(rest.casefold()):
                    yield Completion(voice, -len(rest))
        elif word in self._files or word == "/save":
            path = Document(rest.lstrip().lstrip("'\""))
            yield from self._files.get(word, self._saving).get_completions(path, complete_event)


def _filter(kind: str) -> Callable[[str], bool]:
    def wanted(name: str) -> bool:
        return Path(name).is_dir() or kind_of(Path(name)) == kind

    return wanted
