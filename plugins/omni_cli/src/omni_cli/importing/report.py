"""The report of a conversion: of every key of the input, once, if it was taken, noted or refused, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from attrs import field, frozen

from omni_cli.config.values import plain
from omni_cli.importing.document import Leaf

TAKEN, NOTED, REFUSED = "taken", "noted", "refused"

NO_PIPELINE = "needs a pipeline: install or write one that serves this model, or give --pipeline NAME"
"""The text of keys that are refused for this alone; the report's title says it once for all."""

Path = tuple[str, ...]
"""A place in the output: ``("stages", "thinker", "gpu")``."""


@frozen
class Outcome:
    """The fate of one key.

    Attributes:
        kind: ``taken``: the output does what the key says. ``noted``: it has no counterpart and no effect on answers.
            ``refused``: it is a mistake, or asks for what cannot be had; there is no output until it is resolved.
        text: why, or what to do. For a taken key without ``writes``: why it holds already.
        writes: what it puts into the output.
    """

    kind: str
    text: str = ""
    writes: tuple[tuple[Path, Any], ...] = ()


def take(*writes: tuple[Path, Any], text: str = "") -> Outcome:
    """Return an outcome that writes into the output."""
    return Outcome(TAKEN, text, writes)


def holds(text: str) -> Outcome:
    """Return the outcome of a key that says what is the case here anyway."""
    return Outcome(TAKEN, text)


def note(text: str) -> Outcome:
    """Return the outcome of a key without a counterpart."""
    return Outcome(NOTED, text)


def refuse(text: str) -> Outcome:
    """Return the outcome of a key that must be changed."""
    return Outcome(REFUSED, text)


@frozen
class Entry:
    """A key of the input and its outcome."""

    leaf: Leaf
    outcome: Outcome

    def as_document(self) -> dict[str, Any]:
        """Return the entry as plain data."""
        leaf, outcome = self.leaf, self.outcome
        return {
            "key": leaf.name,
            "file": leaf.file,
            "line": leaf.line,
            "value": leaf.value,
            "outcome": outcome.kind,
            "text": outcome.text,
            "writes": [".".join(path) for path, _ in outcome.writes],
        }


@frozen
class Report:
    """The report of one file.

    Attributes:
        title: the pipeline, or why there is none.
        stages: our stage by the number or name of theirs.
        entries: every key of the input, in its order.
        output: the deploy file as plain data; it is not complete if a key is refused.
    """

    title: str
    stages: dict[str, str] = field(factory=dict)
    entries: list[Entry] = field(factory=list)
    output: dict[str, Any] = field(factory=dict)

    def of(self, kind: str) -> list[Entry]:
        """Return the entries of one kind."""
        return [entry for entry in self.entries if entry.outcome.kind == kind]

    @property
    def counts(self) -> dict[str, int]:
        """The number of keys of each kind."""
        return {kind: len(self.of(kind)) for kind in (TAKEN, NOTED, REFUSED)}

    def lines(self) -> Iterator[str]:
        """Yield the report for a person: a title, the counts, and a line for each note and refusal."""
        mapped = ", ".join(f"{theirs} → {ours}" for theirs, ours in self.stages.items())
        yield f"{self.title}: {mapped}" if mapped else self.title
        counts = self.counts
        kept = sum(1 for entry in self.of(TAKEN) if not entry.outcome.writes)
        taken = f"{counts[TAKEN]} taken ({kept} hold without a line)"
        yield f"{len(self.entries)} keys: {taken}, {counts[NOTED]} noted, {counts[REFUSED]} refused"
        for kind in (REFUSED, NOTED):
            for entry in self.of(kind):
                if entry.outcome.text == NO_PIPELINE:
                    continue
                yield f"{kind:7}  {entry.leaf.where}  {entry.leaf.name}: {shown(entry.leaf.value)}  {entry.outcome.text}"

    def as_json(self) -> str:
        """Return the report, with the output, as one JSON document."""
        document = {
            "title": self.title,
            "stages": self.stages,
            "counts": self.counts,
            "keys": [entry.as_document() for entry in self.entries],
            "output": self.output if not self.of(REFUSED) else None,
        }
        return json.dumps(plain(document), indent=2, default=str)


def shown(value: Any) -> str:
    """Return a value as it is written in a file, cut where it is long."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
