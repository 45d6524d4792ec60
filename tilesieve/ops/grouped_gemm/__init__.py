"""Rows ordered by expert, each times its expert's matrix."""
