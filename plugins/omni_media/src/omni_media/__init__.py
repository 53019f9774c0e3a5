"""Media in chat messages: every form that clients send, turned into the one that stages read.

``reader`` reads the messages and the media of one request under a :class:`~omni_core.client.chat_request.MediaPolicy`; ``fetch`` gets
media by URL from public addresses only.
"""
