"""Selected keys and values into packed buffers."""
