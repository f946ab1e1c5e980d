"""prl: reinforcement learning for language models that trains while it generates."""
