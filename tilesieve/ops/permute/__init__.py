"""Token rows ordered by expert."""
