"""Drawings of a pipeline: Mermaid for documents, and lines for a terminal."""

from __future__ import annotations

from omni_core.api import PipelineConfig
from omni_core.runtime_api import process_groups


def mermaid(config: PipelineConfig) -> str:
    """Draw a Mermaid flowchart: payloads as arrows, streams as dashed arrows, processes that hold several stages as boxes."""
    lines = ["graph TD", f"    client([client]) --> {config.resolved_entry_stage}"]
    for group, stages in process_groups(config).items():
        if len(stages) > 1:
            lines.append(f'    subgraph "process {group}"')
            lines += [f"        {stage.name}" for stage in stages]
            lines.append("    end")
    for stage in config.stages:
        routed = "|route_fn|" if stage.route_fn else ""
        lines += [f"    {stage.name} -->{routed} {target}" for target in stage.next_stages]
        lines += [f"    {stage.name} -.->|stream| {target}" for target in stage.stream_to]
        if stage.terminal:
            lines.append(f"    {stage.name} --> client")
    return "\n".join(lines)


def terminal(config: PipelineConfig) -> str:
    """Draw one line per stage: its process and device, its sources, the targets of its results (→) and of its stream (⇢)."""
    width = max(len(stage.name) for stage in config.stages)
    group_of = {stage.name: group for group, stages in process_groups(config).items() for stage in stages}
    process_width = max(len(group) for group in group_of.values())
    lines = [f"{'stage':{width}}  {'process':{process_width}}  device  goes to"]
    for stage in config.stages:
        device = "cpu" if stage.gpu is None else f"gpu {stage.gpu}"
        ways = [f"→ {target}" + (" (by route_fn)" if stage.route_fn else "") for target in stage.next_stages]
        ways += [f"⇢ {target}" for target in stage.stream_to]
        if stage.terminal:
            ways.append("→ client")
        lines.append(f"{stage.name:{width}}  {group_of[stage.name]:{process_width}}  {device:6}  {', '.join(ways)}")
        if stage.wait_for:
            lines.append(
                f"{'':{width}}  waits for {', '.join(stage.wait_for)}"
                + (" (by wait_for_fn)" if stage.wait_for_fn else "")
            )
    return "\n".join(lines)
