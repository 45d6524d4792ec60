"""Paged caches: `pages.py` is integers only, `pool.py` holds the tensors that the pages point into."""
