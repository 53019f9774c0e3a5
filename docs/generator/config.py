"""The page of the config: its classes, field by field, an example, and the environment."""

from __future__ import annotations

from typing import Any, get_type_hints

import attrs

from generator.text import field_table, page, prose
from omni_core.config.schema import PipelineConfig
from omni_core.relay.base import RelayOptions

PIPELINE_EXAMPLE = """\
model_path: /models/my-model
name: my-model
relay_backend: shm
restart: {limit: 3, window: 60}
retries: 1
stages:
  - name: prepare
    process: front
    factory: my_model.stages:prepare
    next: [encoder, join]
    route_fn: my_model.routing:skip_encoder_without_images
    project_payload: {encoder: "my_model.routing:pixels_only"}
  - name: encoder
    process: encoder
    factory: my_model.stages:create_encoder
    factory_args: {dtype: bfloat16}
    gpu: 0
    gpu_memory: 4GiB
    next: join
  - name: join
    process: front
    factory: my_model.stages:join
    wait_for: [prepare, encoder]
    wait_for_fn: my_model.routing:active_encoders
    merge_fn: my_model.routing:merge
    next: writer
  - name: writer
    process: writer
    factory: engine
    factory_args: {max_running: 16}
    gpu: [0, 1]
    gpu_memory: 40GiB
    replicas: 2
    affinity_key: conversation
    relay: {slot_size_mb: 128, credits: 4}
    terminal: true
"""

OVERLAY_EXAMPLE = """\
retries: 0
stages:
  writer:
    factory_args: {max_running: 8}
    relay: {credits: 2}
"""


def config_page(environment: dict[str, str]) -> str:
    """Return the page. ``environment``: the variables that mean something, each with its description."""
    classes = nested(PipelineConfig)
    parts = [
        "# Config",
        "A pipeline is described by a `PipelineConfig`. Plugins provide one from a function ([hooks](hooks.md#omni_pipelines)); you "
        "can also write one as YAML or JSON. Unknown fields are errors, which name the nearest known one; every error names its full "
        "path, such as `stages[thinker].tp_size`. `omni config validate` checks a config without starting anything. The classes are in "
        "`omni_core.config.schema`.",
        f"A whole file:\n\n```yaml\n{PIPELINE_EXAMPLE}```",
        "## Overrides",
        "A user changes fields of somebody else's pipeline without touching its topology: with a [deploy file](../deploy-files.md), with "
        "variables of the environment, then with flags, which win. In a deploy file, `stages` maps names to fields. Mappings are merged "
        "key by key; everything else is replaced.",
        f"```yaml\n{OVERLAY_EXAMPLE}```",
        "```bash\nomni run my-model --config deploy.yaml --set writer.factory_args.max_running=4 --text Hello\n"
        "omni config explain my-model --config deploy.yaml              # who set what\n```",
        "`name`, `next`, `terminal`, `wait_for` and `stream_to` cannot be overridden. An override of something that does not exist is "
        "an error, and so is the same path twice in one place.",
    ]
    for cls in classes:
        parts += [f"## {cls.__name__}", prose(cls), field_table(cls)]
    variables = [f"| `{name}` | {text} |" for name, text in environment.items()]
    parts += [
        "## What a relay gets",
        "A relay is built from `omni_core.relay.base.RelayOptions`: the stage's `RelayConfig`, resolved for the process that it "
        "belongs to. Stages that share a process must have equal `relay` settings.",
        prose(RelayOptions),
        field_table(RelayOptions),
        "## Environment variables",
        "\n".join(["| variable | |", "|---|---|", *variables]),
    ]
    return page(parts)


def nested(cls: type) -> list[type]:
    """A config class, and the config classes of its fields, each once."""
    found = [cls]
    for kind in get_type_hints(cls).values():
        for each in config_classes(kind):
            found += [inner for inner in nested(each) if inner not in found]
    return found


def config_classes(kind: Any) -> list[type]:
    inner = [each for argument in getattr(kind, "__args__", ()) for each in config_classes(argument)]
    return [kind, *inner] if attrs.has(kind) else inner
