"""memory_vectors: chunks of conversations that recall searches."""
