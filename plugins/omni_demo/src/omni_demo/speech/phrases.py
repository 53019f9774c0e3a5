"""All prompts and replies of the demo. The README's table is made from it."""

from __future__ import annotations

from attrs import frozen

UNKNOWN = "Sorry, I do not know that."
"""The reply to every prompt outside the set."""


@frozen
class Topic:
    """A reply and the prompts that it answers: the first is the question itself, the others are paraphrases."""

    reply: str
    prompts: tuple[str, ...]


TOPICS = (
    Topic("Hello, nice to meet you.", ("Hello!", "Hi there!", "Say hello.", "Good morning.")),
    Topic("My name is Omni.", ("What is your name?", "Who are you?", "Tell me your name.", "What are you called?")),
    Topic("I am very well, thanks.", ("How are you?", "How do you do?", "Are you well?", "How is it going?")),
    Topic("You are welcome.", ("Thank you!", "Thanks a lot.", "Many thanks.", "That was kind of you.")),
    Topic("Goodbye, see you soon.", ("Goodbye!", "Bye bye.", "See you later.", "Good night.")),
    Topic(
        "I can talk, look and listen.",
        ("What can you do?", "What are you able to do?", "How can you help me?", "What do you know?"),
    ),
    Topic("No, I am a small program.", ("Are you human?", "Are you a person?", "Are you real?", "Are you alive?")),
    Topic("One, two, three, four.", ("Count to four.", "Please count.", "Can you count?", "Count for me.")),
    Topic(
        "A bigger model knows jokes.",
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny."),
    ),
    Topic(
        "The sky is blue.",
        ("What colour is the sky?", "Which colour has the sky?", "Is the sky blue?", "Tell me the colour of the sky."),
    ),
    Topic(
        "A week has seven days.",
        (
            "How many days are in a week?",
            "How long is a week?",
            "How many days does a week have?",
            "Count the days of a week.",
        ),
    ),
    Topic(
        "Paris is in France.",
        (
            "Where is Paris?",
            "Which country is Paris in?",
            "Do you know where Paris is?",
            "What is the capital of France?",
        ),
    ),
    Topic(
        "Two and two make four.",
        ("What is two plus two?", "How much is two and two?", "Add two and two.", "What do two and two make?"),
    ),
    Topic(
        "My voice has one speaker.",
        ("Can you change your voice?", "How many voices do you have?", "Use another voice.", "Whose voice is this?"),
    ),
    Topic(
        "Once upon a time, a fox slept.",
        ("Tell me a story.", "Do you know a story?", "Read me a story.", "Tell me about a fox."),
    ),
)

COLOURS = ("red", "green", "blue", "yellow")
"""The colours that it recognises in a picture."""

PICTURE_PROMPTS = ("What colour is this?", "What is in the picture?", "What do you see?", "Describe the picture.")
"""The prompt that is sent with a picture. A picture alone works, too."""

KEYWORDS = ("yes", "no", "stop", "music")
"""The words that it recognises in a sound."""

SOUND_PROMPTS = ("What did I say?", "What do you hear?", "Which word is this?", "Listen to this.")
"""The prompt that is sent with a sound. A sound alone works, too."""


def picture_reply(colour: str) -> str:
    return f"This picture is {colour}."


def sound_reply(keyword: str) -> str:
    return f"I heard you say {keyword}."


REPLIES = (
    *(topic.reply for topic in TOPICS),
    *map(picture_reply, COLOURS),
    *map(sound_reply, KEYWORDS),
    UNKNOWN,
)
"""All replies."""
