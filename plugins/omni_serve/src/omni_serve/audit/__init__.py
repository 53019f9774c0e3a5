"""Checks of any OpenAI-compatible server: its errors, keys, streams and formats, and that its speech is whole however it is sent.

:mod:`checks` has the list, a module for each area has the checks, :mod:`subject` asks the server.
"""
