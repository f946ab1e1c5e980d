"""What a scheduler needs to know, from the TOML of a run: where its parts go, and how they are started and stopped."""
