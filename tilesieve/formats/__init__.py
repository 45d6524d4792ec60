"""Byte layouts and quantisers, by name: make, check, view."""
