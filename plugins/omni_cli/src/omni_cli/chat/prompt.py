"""The prompt of a chat: line editing, history, completion, several lines; and a terminal that does not echo between prompts."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style

_STYLE = Style.from_dict({"prompt": "bold ansicyan", "attached": "ansiyellow", "placeholder": "ansibrightblack"})


class Prompt:
    """Reads messages. Enter sends, Alt-Enter and Ctrl-J begin a new line.

    Args:
        completer: completes commands.
        attached: returns the names of the files that the next message has.
        hint: what an empty prompt shows.
    """

    def __init__(self, completer: Completer, attached: Callable[[], list[str]], hint: str) -> None:
        self._attached = attached
        self._hint = hint
        self._session: PromptSession[str] = PromptSession(
            history=kept_history(),
            completer=completer,
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            reserve_space_for_menu=5,
            key_bindings=_bindings(),
            multiline=True,
            prompt_continuation=lambda width, line, wrapped: " " * width,
            style=_STYLE,
        )

    async def read(self) -> str:
        """Return the next message. Raises ``EOFError`` at the end of input and ``KeyboardInterrupt`` on Ctrl-C."""
        hint, self._hint = self._hint, ""
        with patch_stdout(raw=True):  # a log record appears above the prompt
            return await self._session.prompt_async(self._message, placeholder=[("class:placeholder", hint)])

    def _message(self) -> StyleAndTextTuples:
        attached: StyleAndTextTuples = [("class:attached", f"[{name}] ") for name in self._attached()]
        return [*attached, ("class:prompt", "> ")]


async def enter_pressed(message: Callable[[], str]) -> None:
    """Wait for Enter, with a line that is made again twice a second. Raises as :meth:`Prompt.read`."""
    bindings = KeyBindings()

    @bindings.add("<any>")
    def ignore(event: KeyPressEvent) -> None:
        """Keep typed characters out of the line."""

    session: PromptSession[str] = PromptSession(
        message=message, key_bindings=bindings, refresh_interval=0.5, history=InMemoryHistory(), erase_when_done=True
    )
    await session.prompt_async()


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class _QuietHistory(FileHistory):
    """A history whose file may become unwritable."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def kept_history() -> History:
    """Return the history kept in ``$XDG_STATE_HOME/omni/chat_history``, readable by its owner only; in memory where that cannot be."""
    path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "omni" / "chat_history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError:
        return InMemoryHistory()
    return _QuietHistory(str(path))


@contextmanager
def quiet_terminal() -> Iterator[None]:
    """Turn echo off, so that what is typed during a reply waits for the next prompt instead of mixing with it.

    Ctrl-C still makes SIGINT.
    """
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    quiet = termios.tcgetattr(number)
    quiet[0] &= ~termios.ICRNL  # Enter as the prompt expects it
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(number, termios.TCSADRAIN, before)
