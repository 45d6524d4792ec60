"""Gate and up from one read, SwiGLU, down."""
