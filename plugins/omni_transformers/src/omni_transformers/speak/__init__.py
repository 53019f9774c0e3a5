"""Models that make sound of text."""
