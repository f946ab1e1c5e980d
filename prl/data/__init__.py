"""Where prompts come from: rows that are read or generated, checked, mixed, and put into one order."""
