"""``omni run``, and what it shares with the other commands that make requests, ``chat`` and ``batch``.

``command`` has the flags of a request, those that a pipeline declares included (``parameter_flags``); ``session`` runs a request and
shows its reply on a ``display``.
"""
