"""The control address: where a run that goes on can be asked how it is, and steered."""
