"""Dense against sparse on a real model: what selection saves and what it loses."""
