"""Dense attention of single query rows over a paged cache."""
