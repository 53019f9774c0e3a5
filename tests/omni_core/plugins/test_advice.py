"""The advice what to install says what the distributions here provide."""

from __future__ import annotations

import pytest

from omni_core.hookspecs import ServiceComponent
from omni_core.plugins import load_plugins
from omni_core.plugins.advice import advice, comes_with


@pytest.mark.parametrize("kind", ["commands", "services"])
def test_it_names_what_each_installed_distribution_provides(kind: str) -> None:
    provided: dict[str, set[str]] = {}
    for component, record in load_plugins().components(f"omni_{kind}"):
        name = component.slot if isinstance(component, ServiceComponent) else component.name
        if " " not in name:  # a command of a group
            provided.setdefault(record.distribution, set()).add(name)
    installed = {each: names for each, names in advice()[kind].items() if each in provided}
    assert "omni-commands" in installed
    assert installed == {each: sorted(provided[each]) for each in installed}


def test_what_is_unknown_has_no_advice() -> None:
    assert comes_with("commands", "nothing") == ""
    assert comes_with("schedulers", "engine", "sglang").startswith(
        "omni-torch: pip install omni-torch, or omni-sglang:"
    )
