"""Attention of many query rows of a sequence, each over its own selection."""
