"""Positions of a selection as places in the page pool."""
