"""The items of a session in their order, bounded in bytes and in number."""

from __future__ import annotations

from attrs import define, field

from omni_core.api import shown
from omni_serve.errors import ApiError, invalid
from omni_serve.realtime.items import Item

RETAINED = 0.75
"""The part of the bounds that is left once they were reached: what is deleted changes the beginning of the next prompt, so that all of it
is computed anew, which must not happen in every turn.
"""


@define
class Conversation:
    """Items by id, in order."""

    most_bytes: int
    most_items: int
    most_frames: int = 64
    items: list[Item] = field(factory=list)

    @property
    def size(self) -> int:
        """Bytes that the items take."""
        return sum(item.size for item in self.items)

    def find(self, identity: object, where: str = "item_id") -> Item:
        """Return an item. Raises ApiError 404."""
        found = next((item for item in self.items if item.id == identity), None)
        if found is None:
            raise ApiError(
                404,
                f"{where}: no item of the conversation has the id {shown(identity)}",
                param=where,
                code="item_not_found",
            )
        return found

    def add(self, item: Item, previous: str | None = None) -> str | None:
        """Insert an item after ``previous``: the id of another, ``root`` for the beginning, ``None`` for the end.

        Returns:
            The id of the item before it.

        Raises:
            ApiError: its id is taken, or there is no such other.
        """
        if any(each.id == item.id for each in self.items):
            raise invalid(f"item.id: there is an item {shown(item.id)} already", "item.id", "item_exists")
        if previous == "root":
            index = 0
        elif previous is None:
            index = len(self.items)
        else:
            index = self.items.index(self.find(previous, "previous_item_id")) + 1
        self.items.insert(index, item)
        self._forget_frames()
        return self.items[index - 1].id if index else None

    def _forget_frames(self) -> None:
        """Take the frames out of older turns, if there are too many, or they take a half of the bytes.

        A half of them is kept then: what a pipeline has cached of a conversation is of no use from the turn on that is changed.
        """
        seen = [(item, part) for item in self.items for part in item.content if part.frames]
        count, size = sum(len(part.frames) for _, part in seen), sum(part.size for _, part in seen)
        if count <= self.most_frames and size <= self.most_bytes // 2:
            return
        count = size = 0
        for number, (item, part) in enumerate(reversed(seen)):
            count, size = count + len(part.frames), size + part.size
            if number and (count > self.most_frames // 2 or size > self.most_bytes // 4):
                item.content.remove(part)

    def forget_frames(self) -> bool:
        """Take the frames out of all turns; return if there were any."""
        seen = [(item, part) for item in self.items for part in item.content if part.frames]
        for item, part in seen:
            item.content.remove(part)
        return bool(seen)

    def check_room(self, item: Item, where: str) -> None:
        """Check that there is room for an item that is never removed to make room: one of the role ``system``.

        Raises:
            ApiError: 413.
        """
        kept = [each for each in self.items if each.role == "system"]
        if item.role != "system":
            return
        if sum(each.size for each in kept) + item.size > self.most_bytes or len(kept) >= self.most_items:
            raise ApiError(
                413,
                f"{where}: the conversation has no room for more items of the role system; delete some",
                param=where,
                code="conversation_full",
            )

    def remove(self, item: Item) -> None:
        """Take an item out."""
        self.items.remove(item)

    def shorten(self, keep: set[str]) -> list[Item]:
        """Remove the oldest items of a conversation beyond its bounds, down to :data:`RETAINED`; return them. Those of ``keep`` stay."""
        size, removed = self.size, list[Item]()
        if size <= self.most_bytes and len(self.items) <= self.most_items:
            return removed
        for item in list(self.items[:-1]):
            if size <= RETAINED * self.most_bytes and len(self.items) <= RETAINED * self.most_items:
                break
            if item.id not in keep and item.role != "system":
                self.items.remove(item)
                removed.append(item)
                size -= item.size
        return removed
