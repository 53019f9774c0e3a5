"""Errors of the pipeline as a client sees them."""

from __future__ import annotations

import json
import re

import pytest

from omni_core.errors import (
    InvalidRequestError,
    RequestFailedError,
    RequestTimeoutError,
    RequestTooLargeError,
    StageFailedError,
)
from omni_serve.errors import ApiError, api_error, placed


@pytest.mark.parametrize(
    ("error_type", "status", "code", "retry"),
    [
        ("ValueError", 500, "stage_failed", "false"),
        ("ProcessDied", 503, "unit_restarting", "true"),
        ("PeerDiedError", 503, "unit_restarting", "true"),
        ("StageFailedError", 503, "unit_failed", "true"),
    ],
)
def test_a_request_may_be_repeated_if_its_process_has_died(
    error_type: str, status: int, code: str, retry: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = api_error(RequestFailedError("1", "speak", error_type, "it was killed"))
    assert (made.status, made.code, made.headers["x-should-retry"]) == (status, code, retry)
    assert ("retry-after" in made.headers) == (status == 503)
    told = json.dumps(made.body)
    assert not [word for word in ("speak", "it was killed", "Error:", error_type) if word in told]
    (line,) = caplog.messages
    assert made.message.rpartition("id ")[2] in line
    assert all(word in line for word in ("'speak'", "it was killed", error_type))


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device", "/srv/voices/x"),
        KeyError("secret"),
        RequestTimeoutError("1", "speak", "TimeoutError", "10 s; secret"),
        StageFailedError("speak", "secret"),
        ExceptionGroup("several", [ValueError("secret")]),
    ],
)
def test_a_failure_of_the_server_is_told_by_an_id(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    made = api_error(error)
    assert made.status >= 500
    assert not re.search(
        r"secret|speak|space|Error\b|Errno|/srv|several", json.dumps(made.body).replace("server_error", "")
    )
    identity = re.search(r"; id (\w{16})$", made.message)
    assert identity is not None
    assert identity[1] in caplog.messages[0]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequestError("messages[0].content[1] (image): damaged"), 400, "invalid_value"),
        (RequestTooLargeError("messages[0].content[1] (image): 9 pixels are over the limit"), 413, "too_large"),
    ],
)
def test_what_is_over_a_limit_has_a_status_of_its_own(error: InvalidRequestError, status: int, code: str) -> None:
    made = api_error(error)
    assert (made.status, made.code, made.param) == (status, code, "messages[0].content[1]")
    assert made.message == str(error)


def test_an_error_about_the_messages_names_the_field_that_they_were_made_of() -> None:
    for param, name in (
        ("messages[0].content[0]", "file"),
        ("messages[0].content[0].data", "file"),
        ("model", "model"),
    ):
        with pytest.raises(ApiError) as caught, placed({"messages[0].content[0]": "file"}):
            raise ApiError(400, f"{param} (audio): is at fault", param=param)
        assert (caught.value.param, caught.value.message) == (name, f"{name} (audio): is at fault")
