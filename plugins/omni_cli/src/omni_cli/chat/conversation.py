"""Keep what was said in a chat: the turns with their media, what is attached to the next one, and the one to try again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import define, field

Part = dict[str, Any]
Message = dict[str, Any]


@define
class Conversation:
    """A system message and turns. A turn counts once it is answered: one that fails leaves the conversation as it was."""

    system: str | None = None
    turns: list[tuple[Message, Message]] = field(factory=list)
    attached: list[Part] = field(factory=list)
    last: list[Part] = field(factory=list)
    """The parts of the last message that was sent, answered or not."""

    def attach(self, kind: str, path: Path) -> None:
        """Add a file to the next message."""
        self.attached.append({"type": kind, "path": str(path.absolute())})

    def ask(self, text: str) -> list[Message]:
        """Return the messages of a request that adds ``text`` and what is attached. Neither may be all that there is."""
        self.last = [*self.attached, *([{"type": "text", "text": text}] if text else [])]
        return self._messages()

    def again(self) -> list[Message] | None:
        """Return the messages that ask for the last message's answer once more, or ``None`` where nothing was sent."""
        if not self.last:
            return None
        if self.turns and self.turns[-1][0]["content"] is self.last:
            self.turns.pop()
        return self._messages()

    def answered(self, text: str) -> None:
        """Record the answer to the last message."""
        self.turns.append(({"role": "user", "content": self.last}, {"role": "assistant", "content": text}))
        self.attached = []

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.turns, self.attached, self.last = [], [], []

    def messages(self) -> list[Message]:
        """Return what was said, as messages."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *(message for turn in self.turns for message in turn)]

    def _messages(self) -> list[Message]:
        return [*self.messages(), {"role": "user", "content": self.last}]


def written(messages: list[Message], path: Path) -> str:
    """Return a conversation as the text of a file: JSON for ``.json``, otherwise Markdown."""
    if path.suffix == ".json":
        return json.dumps(messages, indent=2, ensure_ascii=False) + "\n"
    return "\n".join(f"**{message['role']}**: {_plain(message['content'])}\n" for message in messages)


def _plain(content: str | list[Part]) -> str:
    if isinstance(content, str):
        return content
    return " ".join(part["text"] if part["type"] == "text" else f"[{part['type']}: {part['path']}]" for part in content)
