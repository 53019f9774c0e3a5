"""The module of the stage that ``phases`` names: it may take its time to be imported."""

from __future__ import annotations

from typing import Any

import phases

phases.come_to("import")


def factory() -> Any:
    phases.come_to("build")
    return phases.compute
