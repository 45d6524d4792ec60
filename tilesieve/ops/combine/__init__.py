"""Expert rows back to their tokens."""
