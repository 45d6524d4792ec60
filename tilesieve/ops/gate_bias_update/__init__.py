"""The selection bias of each expert, one step towards even loads."""
