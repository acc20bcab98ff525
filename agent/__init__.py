"""What an agent does with the read models: contexts, recall, models, tools, importers, servers."""
