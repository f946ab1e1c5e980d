"""Environments: what a rollout does with the model, where it is more than one answer to its prompt."""
