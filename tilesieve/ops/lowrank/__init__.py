"""Scores of queries against reduced keys."""
