"""The log: contracts, subjects, codec, append and read. Imports nothing else of turnlog."""
