"""Whatever a file holds, a conversion ends in a report of each key, or in an error that names the file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import example_pipeline
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_cli.importing import output
from omni_cli.importing.report import Report
from omni_cli.importing.sglang_omni import keys as sglang_keys
from omni_cli.importing.sglang_omni.convert import convert as from_sglang
from omni_cli.importing.vllm_omni import keys
from omni_cli.importing.vllm_omni.convert import convert as from_vllm
from omni_core.errors import ConfigError, OmniError

REGISTRY = example_pipeline.registry()

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.floats()
    | st.sampled_from(
        ["0,1", "0", "bfloat16", "SharedMemoryConnector", "shm", "${x}", "vllm_omni.f", "sglang_omni.f", "mp"]
    )
    | st.text(max_size=8)
)
NAMES = st.sampled_from(
    [
        *keys.STAGE,
        *keys.OTHER_STAGE_KEYS,
        *keys.TOP,
        *keys.SECTIONS,
        *keys.PLATFORMS,
        *sglang_keys.STAGE,
        *sglang_keys.NESTED,
        *sglang_keys.ENGINE,
        *sglang_keys.TOP,
        *sglang_keys.OTHERS,
        *(
            "name",
            "extra",
            "from",
            "to",
            "from_stage_0",
            "to_stage_1",
            "temperature",
            "seed",
            "audio",
            "reader",
            "talker",
            "stages",
        ),
    ]
) | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
STAGE = st.fixed_dictionaries({"stage_id": st.integers(0, 3) | SCALARS}) | st.just({})
STAGES = st.lists(
    st.tuples(STAGE, st.dictionaries(NAMES, VALUES, max_size=5)).map(lambda each: {**each[1], **each[0]}), max_size=3
)
DEPLOY = st.fixed_dictionaries(
    {},
    optional={
        "stages": STAGES | VALUES,
        "stage_args": STAGES,
        "connectors": st.dictionaries(st.sampled_from(["shm", "b"]), VALUES, max_size=2),
        "platforms": st.dictionaries(NAMES, st.fixed_dictionaries({"stages": STAGES}) | VALUES, max_size=2),
        "edges": VALUES,
        "runtime": VALUES | st.fixed_dictionaries({"edges": VALUES}),
    },
).flatmap(lambda fixed: st.dictionaries(NAMES, VALUES, max_size=3).map(lambda more: {**more, **fixed}))
PIPELINE = st.fixed_dictionaries(
    {},
    optional={
        "stages": st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES), max_size=3) | STAGES,
        "processes": VALUES,
    },
).flatmap(lambda fixed: st.dictionaries(NAMES, VALUES, max_size=4).map(lambda more: {**more, **fixed}))

often = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def converted(convert: Callable[..., Report], text: str) -> tuple[Report | None, Path]:
    """The report of a file with this text, or none if it cannot be read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speaker.yaml"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            report = convert(path, REGISTRY)
        except OmniError as error:
            if str(path) not in str(error):
                pytest.fail(f"the error names no file: {error}")
            return None, path
        json.loads(report.as_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert list(report.lines())
        assert output.text(report, str(path))
        if not report.of("refused"):
            with suppress(ConfigError):  # each key may be right by itself, and not beside the others
                output.validate(report, str(path), None, REGISTRY)
        return report, path


def check(convert: Callable[..., Report], document: Any, every_key_once: Any, tmp_path: Path) -> None:
    text = json.dumps(document).replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf")
    report, path = converted(convert, text)
    if report is not None and "base_config" not in document:
        copy = tmp_path / "copy.yaml"
        copy.write_text(text)
        named = {entry.leaf.file for entry in report.entries}
        assert named <= {str(path)}
        renamed = Report(
            "",
            entries=[
                type(e)(type(e.leaf)(e.leaf.path, e.leaf.value, str(copy), e.leaf.line), e.outcome)
                for e in report.entries
            ],
        )
        every_key_once(renamed, [copy])


@often
@given(document=DEPLOY)
def test_deploy_files(document: Any, every_key_once: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(from_vllm, document, every_key_once, tmp_path_factory.getbasetemp())


@often
@given(document=PIPELINE)
def test_pipeline_configs(document: Any, every_key_once: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(from_sglang, document, every_key_once, tmp_path_factory.getbasetemp())


TOKENS = st.lists(
    st.sampled_from(
        ["stages:", "\n", "  ", "- ", "stage_id: 0", "a", ": ", "&x ", "*x", "<<: *x", "!!int ", "!t ", "{", "}", "[", "]", "'", '"',
         "|", ">", "%YAML 9.9", "---", "...", "\t", "0x", "1e999", ".nan", "2024-13-45", "~", "?", "#", "\x00", "é"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@often
@given(text=TOKENS | st.text(max_size=60))
def test_any_text(text: str) -> None:
    for convert in (from_vllm, from_sglang):
        converted(convert, text)
