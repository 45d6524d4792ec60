"""Keys and values into a paged cache."""
