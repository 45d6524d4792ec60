"""transformers models on these operators: load, shape, session, attention."""
