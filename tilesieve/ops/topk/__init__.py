"""The best positions of a score row."""
