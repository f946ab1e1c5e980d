"""What learns: the trainer protocol and its implementations."""
