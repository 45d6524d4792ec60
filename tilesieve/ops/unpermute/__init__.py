"""Rows ordered by expert back to their tokens."""
