"""``omni batch``: answers a file of requests, many at once, in order, and goes on where it was stopped.

:mod:`.lines` reads requests, :mod:`.work` keeps a bounded number of them running, :mod:`.answers` writes replies and errors as lines,
:mod:`.journal` is the output file that survives a kill, and :mod:`.command` has the flags.
"""
