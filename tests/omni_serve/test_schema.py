"""Generated requests on every operation of the OpenAPI document: whatever comes, it is never an error of the server."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from omni_serve_clients import running_server
from serve_stages import speaking_pipeline

from omni_core import AsyncPipe
from omni_serve import Settings, create_app

EXAMPLES = 8


def ask_all(address: str) -> Counter[int]:
    """Send generated requests to every operation; count the answers by status."""
    statuses: Counter[int] = Counter()
    schema = schemathesis.openapi.from_url(f"http://{address}/openapi.json")

    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            answer = case.call(timeout=20)
            statuses[answer.status_code] += 1
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)
            if answer.status_code >= 400:
                error = answer.json()["error"]
                assert {"message", "type", "param", "code"} <= set(error)
                assert error["message"]

        check()
    return statuses


@pytest.mark.asyncio(loop_scope="session")
async def test_no_generated_request_makes_the_server_fail(
    pipe: AsyncPipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    app = create_app(pipe, Settings(voices_dir=tmp_path_factory.mktemp("voices"), any_model=True))
    app.state.server.warm = True  # a server that warms up is not ready, which is a 503
    async with running_server(app) as address:
        statuses = await asyncio.to_thread(ask_all, address)
    assert statuses[200] > 20
    assert statuses[400] > 20


def test_the_document_describes_bodies_keys_and_errors() -> None:
    class Pipe:
        config = speaking_pipeline()

        def health(self) -> dict[str, object]:
            return {}

    keyless = create_app(Pipe()).openapi()  # type: ignore[arg-type]
    assert "security" not in keyless
    assert "securitySchemes" not in keyless["components"]
    document = create_app(Pipe(), Settings(keys={"mine": "the secret"})).openapi()  # type: ignore[arg-type]
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatRequest"}
    schemas = document["components"]["schemas"]
    assert set(schemas["ChatRequest"]["required"]) == {"model", "messages"}
    assert "AudioOptions" in schemas
    tools, _ = schemas["ChatRequest"]["properties"]["tools"]["anyOf"]
    assert tools["items"]["properties"]["function"]["required"] == ["name"]
    assert document["security"] == [{"key": []}]
    free = {path for path, operations in document["paths"].items() if operations.get("get", {}).get("security") == []}
    assert free == {"/health", "/health/ready"}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["responses"]["default"], path
