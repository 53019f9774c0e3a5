"""Instructor: objects of a type, by its modes."""

from __future__ import annotations

from typing import Literal

import instructor
import openai
import pytest
from instructor import Mode
from pydantic import BaseModel


class Place(BaseModel):
    """A place."""

    city: str
    size: Literal["large", "small"]
    people: list[int]


@pytest.mark.parametrize("mode", [Mode.JSON_SCHEMA, Mode.TOOLS, Mode.RESPONSES_TOOLS])
def test_objects(mode: Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(), mode=mode)
    said = [{"role": "user", "content": "where"}]
    made = client.create(model="tones", messages=said, response_model=Place, max_retries=1)
    assert made.model_dump() == {"city": "one", "size": "large", "people": [3]}


def test_parse_of_the_sdk() -> None:
    client = openai.OpenAI()
    said = [{"role": "user", "content": "where"}]
    chat = client.chat.completions.parse(model="tones", messages=said, response_format=Place)
    response = client.responses.parse(model="tones", input="where", text_format=Place)
    assert chat.choices[0].message.parsed == response.output_parsed == Place(city="one", size="large", people=[3])
