"""What users said, turned into candidate memories: by rules and by a model."""
