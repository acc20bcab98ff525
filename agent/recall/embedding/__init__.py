"""Makes vectors of chunks and memories and keeps them in a content-addressed cache."""
