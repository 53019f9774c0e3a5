"""The module of the stage that ``phases`` names: its import may take long."""

from __future__ import annotations

from typing import Any

import phases

phases.come_to("import")


def factory() -> Any:
    phases.come_to("build")
    return phases.compute
