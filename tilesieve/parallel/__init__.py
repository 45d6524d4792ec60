"""Over several devices: expert parallelism and selection over a sharded context. Empty until its first operator."""
