"""turnlog's own routes, one module per subject."""
