"""The Model Context Protocol: six tools over the use cases."""
