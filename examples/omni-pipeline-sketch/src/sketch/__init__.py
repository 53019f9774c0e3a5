"""A tiny model of two networks that share their attention: one reads text and an image, the other draws."""
