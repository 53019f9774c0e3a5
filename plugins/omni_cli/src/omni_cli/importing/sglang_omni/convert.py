"""Converts a pipeline config of SGLang-Omni: one outcome for every key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import frozen

from omni_cli.importing import values
from omni_cli.importing.document import Leaf, read
from omni_cli.importing.output import document, settle
from omni_cli.importing.report import NO_PIPELINE, Outcome, Report, holds, note, refuse, take
from omni_cli.importing.sglang_omni import keys
from omni_cli.importing.target import Target, find, known_names, resolve
from omni_core.api import PluginRegistry, did_you_mean


def convert(path: Path, registry: PluginRegistry, *, pipeline: str | None = None, model: str | None = None) -> Report:
    """Convert a file.

    Args:
        pipeline: ours, by name; otherwise the file's ``config_cls`` says which, or its name.
        model: a checkpoint folder or hub id, in place of the file's own.

    Raises:
        ConfigError: the file cannot be read, or the checkpoint. PluginError: no pipeline is called so.
    """
    leaves = read(path)
    named = [str(leaf.value) for leaf in leaves if leaf.path == ("config_cls",) and leaf.value is not None]
    component: Any = (
        find(registry, named, [path.stem]) if pipeline is None else registry.get("omni_pipelines", pipeline)
    )
    if component is None:
        known = ", ".join(known_names(registry)) or "none"
        return Report(
            f"the file does not say which installed pipeline it is for (config_cls; known: {known}); give --pipeline NAME",
            entries=settle((leaf, refuse(NO_PIPELINE)) for leaf in leaves),
        )
    conversion = _Conversion(leaves, resolve(component, model, registry), model)
    entries = settle((leaf, conversion.outcome(leaf)) for leaf in leaves)
    target = conversion.target
    return Report(
        target.name,
        conversion.stages,
        entries,
        document(entries, target.all_stages, pipeline=target.name, **conversion.fields),
    )


@frozen(slots=False)
class _Conversion:
    """The leaves of one file, and the pipeline that they become."""

    leaves: list[Leaf]
    target: Target
    model: str | None

    @property
    def fields(self) -> dict[str, Any]:
        return {} if self.model is None else {"model_path": self.model}

    @property
    def stages(self) -> dict[str, str]:
        """Our stages by their names, of those that the file mentions."""
        names = dict.fromkeys(name for leaf in self.leaves if (name := self._stage_of(leaf)) is not None)
        return {name: mapped for name in names if (mapped := self.mapped(name)) is not None}

    def mapped(self, name: str) -> str | None:
        """Return our stage for one of theirs."""
        found = self.target.declaration.paths.get(f"stages.{name}", name)
        return found if found in self.target.all_stages else None

    def _stage_of(self, leaf: Leaf) -> str | None:
        """Return the name of the stage that a leaf belongs to."""
        path = leaf.path
        if path[0] not in ("stages", "runtime_overrides") or len(path) < 3:
            return None
        if not isinstance(path[1], int):
            return str(path[1])
        names = [each.value for each in self.leaves if each.path == ("stages", path[1], "name")]
        return str(names[0]) if names else None

    def outcome(self, leaf: Leaf) -> Outcome:
        """Return the outcome of one key."""
        top = str(leaf.path[0])
        if leaf.value in ({}, []) and len(leaf.path) == 1 and top in (*keys.TOP, *keys.OTHERS):
            return holds("not set")
        if top in ("stages", "runtime_overrides"):
            return self._of_stage(leaf)
        if top == "processes":
            return self._of_process(leaf)
        if top == "fused_stages":
            return self._fused(leaf)
        if top in ("entry_stage", "config_cls"):
            own = self.target.config.resolved_entry_stage
            right = top == "config_cls" or self.mapped(str(leaf.value)) == own
            return holds("the pipeline's own") if right else refuse(f"requests enter {self.target.name} at {own}")
        if top in keys.FUNCTIONS:
            return _function(leaf.value)
        rule = keys.TOP.get(top)
        if rule is None:
            return refuse(f"no key of a pipeline is called {top!r}{did_you_mean(top, [*keys.TOP, *keys.OTHERS])}")
        if top == "model_path" and self.model is not None:
            return holds(f"--model {self.model} is in its place")
        if top == "relay_backend" and leaf.value not in self.target.registry.names("omni_relays"):
            return refuse(
                f"no relay is called {leaf.value!r} here{did_you_mean(leaf.value, self.target.registry.names('omni_relays'))}"
            )
        if isinstance(rule, keys.To):
            if len(leaf.path) != (2 if top in ("env_defaults", "endpoints") else 1):
                return refuse("must be a single value" if len(leaf.path) > 1 else "must map names to values")
            return _write(leaf, rule.read, tuple(map(str, leaf.path)))
        return _without(rule, leaf.value)

    def _of_stage(self, leaf: Leaf) -> Outcome:
        name = self._stage_of(leaf)
        if name is None:
            return refuse("must be below a stage with a name")
        stage = self.mapped(name)
        if stage is None:
            return refuse(f"{self.target.name} has no stage {name!r}{did_you_mean(name, self.target.all_stages)}")
        key, *inner = map(str, leaf.path[2:])
        if leaf.path[0] == "runtime_overrides":
            key, inner = "factory_args", [key, *inner]
        if key == "executor" and inner:  # of older versions
            key, *inner = [{"args": "factory_args"}.get(inner[0], inner[0]), *inner[1:]]
        if key == "name" and not inner:
            return holds(f"is {stage}")
        if key in keys.TOPOLOGY:
            return self._topology(stage, key, leaf.value)
        if key == "env" and len(inner) == 1:
            return _write(leaf, values.word, ("stages", stage, "env", inner[0]))
        if key in keys.FUNCTIONS and (key != "factory" or not inner):
            return holds("none") if leaf.value in (None, {}) else _function(leaf.value)
        if key in keys.NESTED:
            if leaf.value in (None, {}) and not inner:
                return holds("not set")
            return self._nested(leaf, stage, keys.NESTED[key], inner, free=keys.NESTED[key] is keys.FACTORY)
        rule = keys.STAGE.get(key)
        if rule is None or inner:
            if key == "env":
                return holds("not set") if leaf.value in (None, {}) else refuse("must map names of variables to texts")
            known = [*keys.STAGE, *keys.NESTED, *keys.TOPOLOGY, *keys.FUNCTIONS, "env"]
            return refuse(f"no key of a stage is called {'.'.join((key, *inner))!r}{did_you_mean(key, known)}")
        return self._apply(leaf, stage, rule)

    def _nested(
        self, leaf: Leaf, stage: str, table: dict[str, keys.Setting], inner: list[str], *, free: bool
    ) -> Outcome:
        if len(inner) == 1 and inner[0] in table:
            return self._apply(leaf, stage, table[inner[0]])
        names = self.target.parameters(stage)
        if free and inner and (names is None or inner[0] in names):
            return take((("stages", stage, "factory_args", *inner), leaf.value))
        if not inner:
            return refuse("must map names to values")
        name = ".".join(inner)
        return refuse(f"{stage} has no counterpart of {name!r}{did_you_mean(name, [*table, *(names or ())])}")

    def _apply(self, leaf: Leaf, stage: str, rule: keys.Setting) -> Outcome:
        if not isinstance(rule, keys.To):
            return _without(rule, leaf.value)
        path = rule.path.split(".")
        if leaf.value is None and rule.path != "gpu":
            return holds("null: not set")
        if path[0] == "params":
            group = self.target.group(stage)
            if group is None or path[1] not in [each.name for each in group.parameters]:
                return note(f"{stage} chooses no tokens")
            return _write(leaf, rule.read, ("defaults", "params", group.name, path[1]))
        if path[0] == "factory_args":
            names = self.target.parameters(stage)
            if names is not None and path[1] not in names:
                return note(f"{stage} has no {path[1]}")
        return _write(leaf, rule.read, ("stages", stage, *path))

    def _topology(self, stage: str, key: str, value: Any) -> Outcome:
        """A part of the topology must be what our pipeline says."""
        own = self.target.config.stage(stage)
        given = [value] if isinstance(value, str) else value
        wanted: Any = own.next_stages if key == "next" else getattr(own, key)
        if key == "terminal" or value is None:
            same = (value or False) == (wanted or False)
        else:
            mapped = [self.mapped(str(each)) for each in given] if isinstance(given, list) else []
            same = sorted(map(str, mapped)) == sorted(wanted or [])
            if key == "stream_to" and not same and set(mapped) < set(wanted):
                return self._streams_more(stage, [each for each in wanted if each not in mapped])
        if same:
            return holds("the pipeline's own topology")
        return refuse(
            f"in {self.target.name} it is {json.dumps(wanted)}; a pipeline of another topology is a plugin of its own "
            "(docs/first-pipeline.md)"
        )

    def _streams_more(self, stage: str, others: list[str]) -> Outcome:
        """Ours streams to further stages: that is our own matter where other systems do not number them."""
        text = f"{stage} streams to {', '.join(others)} too; results are the same"
        numbered = {name for group in self.target.stages for name in group}
        return note(text) if numbered & set(others) else holds(text)

    def _of_process(self, leaf: Leaf) -> Outcome:
        """``processes.NAME.num_replicas``: of every stage of that process."""
        if len(leaf.path) != 3 or leaf.path[2] not in ("num_replicas", "replica_devices"):
            return refuse("a process has the keys num_replicas and replica_devices")
        name = str(leaf.path[1])
        within = {
            self.mapped(str(self._stage_of(each)))
            for each in self.leaves
            if each.path[-1] == "process" and each.value == name
        }
        stages = [each for each in within if each] or [
            each.name for each in self.target.config.stages if each.process == name
        ]
        if not stages:
            return refuse(f"no stage has the process {name!r}")
        try:
            if leaf.path[2] == "num_replicas":
                return take(*((("stages", stage, "replicas"), values.count(leaf.value)) for stage in stages))
            numbers = [values.whole(each) for each in leaf.value] if isinstance(leaf.value, list) else []
        except ValueError as error:
            return refuse(f"{error}, is {leaf.value!r}")
        on_gpu = [stage for stage in stages if self.target.config.stage(stage).gpu is not None]
        if not numbers or not on_gpu:
            return refuse("must be a list of device numbers, of a process with a stage on a GPU")
        return take(*((("stages", stage, "gpu"), numbers) for stage in on_gpu))

    def _fused(self, leaf: Leaf) -> Outcome:
        groups = leaf.value if isinstance(leaf.value, list) else []
        mapped = [[self.mapped(str(name)) for name in group] if isinstance(group, list) else [None] for group in groups]
        if len(leaf.path) > 1 or not groups or any(name is None for group in mapped for name in group):
            return refuse(f"must be lists of stages; {self.target.name} has: {', '.join(self.target.all_stages)}")
        return take((("fused_stages",), mapped))


def _write(leaf: Leaf, read: values.Reader, path: tuple[str, ...]) -> Outcome:
    try:
        return take((path, read(leaf.value)))
    except ValueError as error:
        return refuse(f"{error}, is {leaf.value!r}")


def _without(rule: keys.Note | keys.Refuse, value: Any) -> Outcome:
    written = json.dumps(value, default=str)
    if rule.holds and written in rule.holds:
        return holds(rule.holds[written])
    return note(rule.reason) if isinstance(rule, keys.Note) else refuse(rule.advice)


def _function(value: Any) -> Outcome:
    if value is None:
        return holds("none")
    if isinstance(value, str) and value.startswith(("sglang_omni.", "...")):
        return holds("the pipeline here does this itself")
    return refuse("a function of your own cannot be converted; write a pipeline with it (docs/first-pipeline.md)")
