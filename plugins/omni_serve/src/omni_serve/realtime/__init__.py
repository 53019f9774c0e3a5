"""Conversations by voice over a WebSocket: ``/v1/realtime``, ``/v1/live/sessions``, and short-lived keys for browsers.

:class:`~omni_serve.realtime.session.Session` decides everything and does no IO: events of the client, pieces of replies and a clock come
in, actions go out. ``socket`` carries them out.
"""
