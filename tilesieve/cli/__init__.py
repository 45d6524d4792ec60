"""The command line. Each file is one command; what is heavy is imported inside it."""
