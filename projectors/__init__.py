"""Read models: pure projections of the log into Postgres, and the engine that keeps them up to date."""
