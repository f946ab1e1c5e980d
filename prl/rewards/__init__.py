"""What judges: the reward protocol, the built-in rewards, and the scorer that runs them."""
