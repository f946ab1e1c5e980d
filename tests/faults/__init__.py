"""What is done to a run of real processes, and what must come of it: the fault matrix and the soak."""
