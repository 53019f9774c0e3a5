"""``omni chat``: a conversation with a pipeline in a terminal.

:mod:`.command` has the command's flags, :mod:`.session` runs the turns, :mod:`.conversation` holds what was said, :mod:`.prompt` reads
lines and :mod:`.screen` shows replies. Nothing here runs a thread that waits for input, so Ctrl-C and SIGTERM end a chat at once.
"""
