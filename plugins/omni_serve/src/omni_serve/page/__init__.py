"""The page at ``/``: talk to the pipeline by text, voice and media, and watch it work.

Public: :data:`router`, which serves the files of ``static/`` and ``/v1/omni/pipeline``, and :data:`OPEN_PATHS`, which need no key:
the page asks for one, and sends it with everything else. :data:`docs_router` and :data:`DOCS_PATHS` are those of the page ``/docs``.
"""

from omni_serve.page.routes import DOCS_PATHS, OPEN_PATHS, docs_router, router

__all__ = ["DOCS_PATHS", "OPEN_PATHS", "docs_router", "router"]
