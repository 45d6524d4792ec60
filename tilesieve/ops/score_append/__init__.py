"""Reduced keys into a paged score cache."""
