"""New plugins: a complete distribution per kind of component, written from templates (``omni plugins new``)."""

from omni_testing.authoring.kinds import KINDS, Kind
from omni_testing.authoring.names import AuthoringError, ProjectNames
from omni_testing.authoring.project import write_project

__all__ = ["KINDS", "AuthoringError", "Kind", "ProjectNames", "write_project"]
