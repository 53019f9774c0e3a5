"""Models that write recordings down."""
