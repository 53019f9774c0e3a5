"""Constraints by themselves, over a vocabulary of bytes: what random draws write, whatever is computed when."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tarfile
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from constrained import END, TOKENIZER, VOCABULARY, begin, bytewise, written
from jsonschema import Draft202012Validator

from omni_core.api import (
    STRUCTURES,
    TEXT,
    ARRequest,
    Interface,
    InvalidRequestError,
    OmniRequest,
    ParameterGroup,
    SamplingParams,
)
from omni_torch.sampling import constraints, parameters
from omni_torch.sampling.constraints import Constraints, TextConstraint
from omni_torch.sampling.logprobs import TokenLogprobs
from omni_torch.sampling.sample import keep_logprobs, sample

pytest.importorskip("llguidance")

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "true": {"type": "boolean"}, "a": {"type": "integer"}},
    "required": ["name", "true"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(8))
def test_random_draws_write_what_matches(seed: int) -> None:
    Draft202012Validator(PERSON).validate(json.loads(written(begin(json_schema={"schema": PERSON}), seed)))
    assert isinstance(json.loads(written(begin(json_object={}), seed)), dict)
    assert written(begin(choice=["a.b", "a|b", "ä (x)", "tru"]), seed) in ("a.b", "a|b", "ä (x)", "tru")
    assert written(begin("<n>1", grammar='start: "<n>" /[0-9]{2,4}/ "true"'), seed).endswith("true")
    loose = {
        "schema": {**PERSON, "properties": {"name": {"const": "x"}, "true": {"type": "string", "format": "odd"}}},
        "strict": False,
    }
    assert json.loads(written(begin(json_schema=loose), seed))["name"] == "x"


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_bound_depends_on_other_requests(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that fails on one of several ranks would leave the others waiting."""
    monkeypatch.setitem(constraints._LIMITS, "max_lexer_states", 300)
    texts = [[chance.choice("ab") for _ in range(600)] for chance in map(random.Random, range(3))]

    def constraints_of() -> Constraints:
        return Constraints(lambda: TOKENIZER, VOCABULARY, [END], ranks)

    def begun(by: Constraints) -> TextConstraint:
        found = by.begin({"regex": "([ab]*a[ab]{200}){3}"}, "params.writer")
        assert found is not None
        return found

    def fails_at(constraint: TextConstraint, text: list[str]) -> int:
        ids = [TOKENIZER.token_to_id(each) for each in text]
        for count in range(len(ids)):
            try:
                constraint.allowed(ids[:count])
            except InvalidRequestError:
                return count
        return len(ids)

    alone = [fails_at(begun(constraints_of()), each) for each in texts]
    assert max(alone) < 600
    together = constraints_of()
    found = [fails_at(each, text) for each, text in zip([begun(together) for _ in texts], texts, strict=True)]
    assert min(found) > 140, "each has all states of the library for itself"
    assert ranks == 1 or found == alone


@pytest.mark.parametrize("text", ["<end>", "a<end>b"])
def test_a_text_that_spells_the_token_of_the_end_is_written_to_its_end(text: str) -> None:
    """Its spelling is by ordinary tokens, where nothing else may follow."""
    assert written(begin(choice=[text]), 0) == text
    assert written(begin(regex=f"{text}/1"), 0) == f"{text}/1"
    assert json.loads(written(begin(json_schema={"schema": {"const": text}}), 0)) == text


@pytest.mark.parametrize(
    ("structured", "words"),
    [
        ({"regex": "(a"}, r"structured: invalid regex .* unclosed group"),
        ({"regex": r"[^\s\S]"}, "structured: no text matches"),
        ({"json_schema": {"schema": {"$ref": "#"}}}, "structured: no text matches"),
        ({"json_schema": {"schema": {"maxLength": 10**12, "type": "string"}}}, "parse error: decimal literal invalid"),
        ({"json_schema": {"schema": {"type": "strin"}}}, "structured: Invalid type: strin"),
    ],
)
def test_an_error_says_what_is_wrong_in_a_line(structured: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        begin(**structured)
    assert "\n" not in str(caught.value)


def test_a_constraint_is_a_function_of_the_ids_whatever_was_asked_before() -> None:
    """A step that failed is computed again from fewer ids; what was computed ahead is then not what follows."""
    ids = TOKENIZER.encode('{"name":"ab","true":true}').ids
    fresh = []
    for count in range(len(ids) + 1):
        fresh.append(begin(json_schema={"schema": PERSON}).allowed(ids[:count]))
    again, chance = begin(json_schema={"schema": PERSON}), random.Random(0)
    for _ in range(60):
        count = chance.randrange(len(ids) + 1)
        if chance.random() < 0.5:
            again.advance(ids[:count])
        count = count if chance.random() < 0.5 else chance.randrange(len(ids) + 1)
        assert torch.equal(again.allowed(ids[:count]), fresh[count])
    other = TOKENIZER.encode('{"name":"cd","tr').ids
    again.advance(ids[:12])
    assert torch.equal(again.allowed(other), begin(json_schema={"schema": PERSON}).allowed(other))
    assert fresh[-1].nonzero()[:, 0].tolist() == [END]
    assert again.allowed([*ids, END, 7]).nonzero()[:, 0].tolist() == [END], (
        "a text that goes on after its end writes ends"
    )


def test_only_the_rows_of_constrained_requests_change() -> None:
    def request(constraint: TextConstraint | None, **sampling: Any) -> ARRequest:
        params = SamplingParams(logprobs=2, **sampling)
        return ARRequest("r", OmniRequest(), [1], params, constraint=constraint)

    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    free = [int(each.argmax()) for each in logits]
    requests = [request(None), request(begin(choice=["no"])), request(None, temperature=1.0, seed=3)]
    chosen = sample(logits, requests)
    assert torch.equal(logits, before)
    assert chosen[0] == free[0]
    assert chosen[1] == TOKENIZER.token_to_id("n")
    keep_logprobs(logits, requests, chosen)
    for row, each in enumerate(requests):
        told = logits[row].log_softmax(-1)
        best = told.topk(2)
        likely = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        assert each.logprobs == [[(chosen[row], pytest.approx(float(told[chosen[row]]))), *likely]]
    with pytest.raises(InvalidRequestError, match="the text begins with 'x', which is not allowed"):
        begin("x", choice=["no"])


def test_the_bytes_of_tokens_go_with_their_text() -> None:
    told, text = TokenLogprobs(TOKENIZER), "aä€"
    for token in [*TOKENIZER.encode(text).ids, END]:
        told.add([(token, -1.0), (5, -2.0)], begin=0)
    assert told.until(0) == []
    found = told.until(1)
    assert found == told.told
    assert b"".join(each.data for each in found).decode() == text
    assert [each.text for each in found][:2] == ["a", "\ufffd"]
    assert found[0].top[0].token_id == 5
    more = bytewise()
    more.add_tokens(["é¡ x"])  # added tokens are in the vocabulary as they are
    told = TokenLogprobs(more)
    told.add([(more.token_to_id("é¡ x"), -1.0)], begin=0)
    assert told.until(1)[0].data.decode() == "é¡ x"


@pytest.mark.parametrize(
    ("structured", "words"),
    [
        ({"json_schema": {"schema": {"type": "string", "format": "odd"}}}, "Unknown format: odd"),
        ({"json_schema": {"schema": {"type": "foo"}}}, "foo"),
        ({"json_schema": {"schema": 1}}, "must be a mapping with schema"),
        ({"regex": "a("}, "regex"),
        ({"regex": 1}, "must be a text"),
        ({"choice": []}, "must be a list of texts"),
        ({"choice": ["a"] * 1001}, "1001 are over the limit"),
        ({"grammar": 'begin: "a"'}, "start"),
        ({"regex": "a", "choice": ["a"]}, "a mapping with one of"),
        ({"json_schema": {"schema": {"const": b"a"}}}, "is no JSON"),
        ({"regex": "a" * 200_000}, "over the limit"),
    ],
)
def test_what_cannot_be_held_is_an_error_of_the_request(structured: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        begin(**structured)
    assert words in str(caught.value)


def test_without_the_library_a_request_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ParameterGroup("writer", TEXT, "text", parameters.text_parameters())
    interface = Interface(roles={TEXT: "write"}, groups=[group])
    assert parameters.as_installed(interface).structured == list(STRUCTURES)
    monkeypatch.setattr(parameters, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    declared = parameters.as_installed(interface)
    assert declared.structured == []
    asked = declared.check_params({"structured": {"json_object": {}}})["writer"]
    with pytest.raises(
        InvalidRequestError, match=r"params\.writer\.structured: .*pip install 'omni-torch\[structured\]'"
    ):
        begin(**asked["structured"])


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    "bomb",
    [
        {
            "json_schema": {
                "schema": {
                    "type": "object",
                    "properties": {
                        str(n): {"type": "string", "pattern": f"^(a{{1,{n}}}b?){{20}}$"} for n in range(900)
                    },
                }
            }
        },
        {"json_schema": {"schema": {"$ref": "#"}}},
        {
            "json_schema": {
                "schema": {
                    "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}},
                    "$ref": "#/$defs/a",
                }
            }
        },
        {"json_schema": {"schema": {"enum": [f"{n:x}" * 3 for n in range(8000)]}}},
        {"json_schema": {"schema": {"type": "array", "minItems": 1_000_000, "items": {"enum": [1, 2, 3]}}}},
        {
            "json_schema": {
                "schema": {"allOf": [{"anyOf": [{"required": [f"{a}{b}"]} for b in range(9)]} for a in range(9)]}
            }
        },
        {"json_schema": {"schema": deep(11)}},
        {"regex": "(((a{0,99}){0,99}){0,99}b?){0,99}"},
        {"regex": "(a|aa|aaa)*(a|b)*a(a|b){500}c"},
        {"regex": "(.*a.*){1000}"},
        {"grammar": 'start: a a a a a a a a\na: a a | "x" | ""\n'},
    ],
    ids=lambda bomb: json.dumps(bomb)[:60],
)
def test_a_bomb_takes_a_bounded_time(bomb: Any) -> None:
    """It is refused, or costs each step a bounded time."""
    since = time.process_time()
    try:
        made, ids = begin(**bomb), list[int]()
        for _ in range(20):
            allowed = made.allowed(ids)
            assert allowed is not None
            ids.append(int(allowed.nonzero()[-1]))
    except InvalidRequestError:
        pass
    assert time.process_time() - since < 6


def test_compiled_grammars_are_kept_and_bounded() -> None:
    own = Constraints(lambda: TOKENIZER, VOCABULARY, [END])
    for number in [*range(constraints.KEPT + 5), constraints.KEPT + 4]:
        made = own.begin({"regex": f"a{{{number + 1}}}"}, "params.writer")
        assert made is not None
        made.check()
    assert len(own._kept) == constraints.KEPT


SUITE = "jsonschema==4.26.0", "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
CLAIMED = 140
"""Schemas of the suite that the library takes, at least: fewer would show that it is not read."""


@pytest.mark.full
def test_texts_of_every_schema_of_json_schemas_own_suite_that_is_taken_are_valid(tmp_path: Path) -> None:
    """Of its required tests, as jsonschema's source package has them; and what these say is invalid is not allowed.

    The optional ones ask for more than a grammar can say of a date: that only some years have a 29 February.
    """
    name, digest = SUITE
    options = ["-q", "--no-deps", "--no-binary", ":all:", "-d", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, name], check=True)
    [path] = tmp_path.glob("*.tar.gz")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    groups = []
    with tarfile.open(path) as archive:
        for each in archive.getmembers():
            if fnmatch(each.name, "*/json/tests/draft2020-12/*.json") and "/optional/" not in each.name:
                file = archive.extractfile(each)
                assert file is not None
                groups += json.load(file)
    taken, wrong = 0, list[tuple[str, str]]()
    for group in groups:
        schema, what = group["schema"], group["description"]
        try:
            texts = [written(begin(json_schema={"schema": schema}), seed) for seed in range(3)]
        except InvalidRequestError:
            continue
        taken += 1
        wrong += [(what, text) for text in texts if not Draft202012Validator(schema).is_valid(json.loads(text))]
        for test in group["tests"]:
            if not test["valid"] and reads(schema, json.dumps(test["data"], ensure_ascii=False)):
                wrong.append((what, test["description"]))
    print(f"{taken} of {len(groups)} schemas are taken")
    assert not wrong
    assert taken > CLAIMED


def reads(schema: dict[str, Any], text: str) -> bool:
    """Return if a text is allowed."""
    constraint, ids = begin(json_schema={"schema": schema}), TOKENIZER.encode(text).ids
    for count, token in enumerate([*ids, END]):
        allowed = constraint.allowed(ids[:count])
        if allowed is None or not allowed[token]:
            return False
    return True
