"""A pipeline that says back what it hears."""
