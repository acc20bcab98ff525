"""The conversation graph (G7): route → recall → retrieve → generate → persist, one node a file."""
