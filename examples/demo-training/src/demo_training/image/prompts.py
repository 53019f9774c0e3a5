"""Sentences that say a scene or an edit, in many forms."""

from __future__ import annotations

import numpy as np

from demo_training.image.scenes import Edit, Scene, Thing, pick
from omni_demo.image.words import RELATIONS

_BEGINNINGS = (
    "",
    "",
    "",
    "",
    "",
    "draw",
    "paint",
    "show me",
    "a picture of",
    "an image of",
    "draw a picture of",
    "make an image of",
)
_OPPOSITES = {"left": "right", "right": "left", "above": "below", "below": "above"}


def _named(thing: Thing, random: np.random.Generator, articles: tuple[str, ...] = ("a", "a", "a", "the", "")) -> str:
    article = pick(random, articles)
    return f"{'an' if article == 'a' and thing.colour == 'orange' else article} {thing.colour} {thing.shape}"


def describe(scene: Scene, random: np.random.Generator) -> str:
    """Return a sentence that says what a scene shows."""
    words = _named(scene.things[0], random)
    if scene.layout != "single":
        first, second = scene.things
        relation = "left" if scene.layout == "beside" else "above"
        if random.random() < 0.5:
            first, second, relation = second, first, _OPPOSITES[relation]
        phrase = pick(random, RELATIONS[relation])
        words = f"{_named(first, random)} {pick(random, ('', '', 'is'))} {phrase} {_named(second, random)}"
        if relation == "left" and random.random() < 0.1:
            words = f"{_named(first, random)} and {_named(second, random)}"
    return " ".join(f"{pick(random, _BEGINNINGS)} {words}".split())


def instruct(scene: Scene, edit: Edit, random: np.random.Generator) -> tuple[str, bool]:
    """Return a sentence that asks for an edit, and whether it says the thing's old colour, which it does where the shape is not enough."""
    thing = scene.things[edit.index]
    others = [each for index, each in enumerate(scene.things) if index != edit.index]
    names = [f"{thing.colour} {thing.shape}"]
    if all(each.shape != thing.shape for each in others):
        names += [thing.shape, thing.shape]
    picked = pick(random, names)
    name = f"the {picked}"
    article = "an" if edit.new == "orange" else "a"
    forms = {
        "recolour": [f"make {name} {edit.new}", f"make {name} {edit.new}", f"change {name} to {edit.new}", f"turn {name} {edit.new}",
                     f"paint {name} {edit.new}", f"change the colour of {name} to {edit.new}", f"recolour {name} to {edit.new}"],
        "reshape": [f"make {name} {article} {edit.new}", f"change {name} to {article} {edit.new}", f"turn {name} into {article} {edit.new}",
                    f"change {name} into {article} {edit.new}"],
        "remove": [f"remove {name}", f"delete {name}", f"erase {name}"],
    }  # fmt: skip
    return pick(random, forms[edit.kind]), picked != thing.shape
