"""Makes read models again from the log: side by side, one thread, or to verify."""
