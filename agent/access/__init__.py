"""Who makes a request: credentials in, a verified Identity out. No HTTP here."""
