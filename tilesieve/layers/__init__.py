"""A layer in five lines: score, select, plan, compute, combine; and what its scores look at."""
