"""The Model Context Protocol: six tools that call the operations."""
