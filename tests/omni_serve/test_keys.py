"""API keys: the file, the hashes, the comparisons, the short-lived ones."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest
from attrs import evolve

from omni_core.errors import ConfigError
from omni_serve.auth import ANYONE, LENT, KeyLimits, KeyRing, digest, subprotocol

SECRET = "a long secret of mine"


def test_the_file_holds_hashes_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ring = KeyRing(path=path)
    keys = {scope: ring.add(scope, [scope]) for scope in ("inference", "voices")}
    ring.save()
    text = path.read_text()
    for key in keys.values():
        assert key not in text
        assert digest(key) in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = KeyRing.open(path).find(keys["voices"])
    assert found is not None
    assert found.scopes == ("voices",)


def test_short_lived_keys_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing.open(given={"mine": SECRET})
    owner = ring.find(SECRET)
    assert owner is not None
    secret, until = ring.lend(owner, 60.0)
    lent = ring.find(secret)
    assert lent is not None
    assert (lent.name, lent.scopes) == ("mine", ("inference",))
    monkeypatch.setattr(time, "time", lambda: until + 1)
    assert ring.find(secret) is None
    assert ring.find(SECRET) is not None


def test_an_owner_has_a_bounded_number_of_short_lived_keys() -> None:
    ring = KeyRing.open(given={"mine": SECRET, "other": SECRET + "!"})
    mine, other = ring.find(SECRET), ring.find(SECRET + "!")
    assert mine is not None
    assert other is not None
    kept, _ = ring.lend(other, 60.0)
    made = [ring.lend(mine, 60.0)[0] for _ in range(LENT + 1)]
    assert ring.find(made[0]) is None
    assert all(ring.find(each) is not None for each in (*made[1:], kept))


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a look-up does not tell which key was meant, or if there is one."""
    import hmac

    ring = KeyRing.open(given={f"key {number}": f"secret number {number}" for number in range(5)})
    compared: list[str] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or compare(a, b))
    for secret in ("secret number 0", "secret number 4", "no secret"):
        compared.clear()
        ring.find(secret)
        assert len(compared) == 5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("{", "not a file of keys, which is JSON: .* writes one"),
        ("{}", "required field missing @ file.keys; .* writes one"),
        ('{"keys": [{"name": 1}]}', r"required field missing @ file.keys\[0\].digest"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        KeyRing.open(path)
    assert str(path) in str(caught.value)


def test_names_scopes_and_short_keys_are_checked() -> None:
    ring = KeyRing()
    assert ring.is_open
    ring.add("a", limits=KeyLimits(concurrent=1))
    with pytest.raises(ConfigError, match="already"):
        ring.add("a")
    with pytest.raises(ConfigError, match="did you mean 'voices'"):
        ring.add("b", ["voice"])
    with pytest.raises(ConfigError, match="at least 8"):
        KeyRing.open(given={"mine": "short"})
    assert not ANYONE.may("admin")


def test_an_empty_file_of_keys_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": []}))
    assert not KeyRing.open(path).is_open


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], None),
        (["openai-insecure-api-key.x"], None),
        (["OpenAI-Insecure-API-Key.x", "sk-omni-x", "ek_x", "SK-x"], None),
        (["mine", "openai-insecure-api-key.x", "realtime"], "realtime"),
        (["openai-insecure-api-key.x", "realtime"], "realtime"),
        (["mine", "openai-insecure-api-key.x"], "mine"),
    ],
)
def test_a_browser_gets_one_of_its_subprotocols(offered: list[str], chosen: str | None) -> None:
    assert subprotocol(offered) == chosen


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    file = KeyRing(path=path)
    old, kept = file.add("old"), file.add("kept")
    file.save()
    ring = KeyRing.open(path, {"mine": SECRET})
    lent = [ring.lend(key, 60.0)[0] for key in (ring.find(old), ring.find(kept)) if key is not None]
    del file.keys["old"]
    file.keys["kept"] = evolve(file.keys["kept"], limits=KeyLimits(concurrent=3))
    new = file.add("new")
    file.save()
    assert ring.find(new) is None
    ring.reload()
    assert [ring.find(each) is None for each in (old, kept, new, SECRET, *lent)] == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    found = ring.find(lent[1])
    assert found is not None
    assert (found.limits.concurrent, found.scopes) == (3, ("inference",))
    path.write_text("{")
    with pytest.raises(ConfigError, match="not a file of keys"):
        ring.reload()
    assert ring.find(new) is not None, "a malformed file changes nothing"
    with pytest.raises(ConfigError, match="without --keys"):
        KeyRing.open(given={"mine": SECRET}).reload()
