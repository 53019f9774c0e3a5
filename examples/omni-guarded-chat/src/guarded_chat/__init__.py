"""A guard before any pipeline, and a translator behind it."""
