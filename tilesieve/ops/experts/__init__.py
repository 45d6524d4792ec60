"""The MLP of each row's own expert, rows gathered in the load."""
