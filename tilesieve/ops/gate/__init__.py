"""Router logits to experts and their weights."""
