"""Parts of one attention into the whole."""
