"""Makes, wraps, copies and destroys the keys that encrypt users' words."""
