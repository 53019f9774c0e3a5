"""Measures a server: how fast its answers begin, if its speech plays without a pause, and how much of that it does per second.

:mod:`timeline` has the arithmetic of one request, :mod:`summary` that of a run, :mod:`load` sends the requests.
"""
