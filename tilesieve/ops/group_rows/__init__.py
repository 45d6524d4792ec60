"""Picks of experts as rows ordered by expert."""
