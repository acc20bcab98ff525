"""Read model of agents' runs: what each planned, called, handed over and spent."""
