"""New plugins: a complete distribution per kind of component, written from templates (``omni plugins new``)."""

from omni_core.authoring.kinds import KINDS, Kind
from omni_core.authoring.names import AuthoringError, ProjectNames
from omni_core.authoring.project import write_project

__all__ = ["KINDS", "AuthoringError", "Kind", "ProjectNames", "write_project"]
