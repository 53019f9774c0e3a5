"""The page at ``/``: talk to the pipeline by text, voice and media, and watch it work.

Public: :data:`router`, which serves the files of ``static/`` and ``/v1/omni/pipeline``, and :data:`OPEN_PATHS`, which need no key:
the page asks for one, and sends it with everything else.
"""

from omni_serve.page.routes import OPEN_PATHS, router

__all__ = ["OPEN_PATHS", "router"]
