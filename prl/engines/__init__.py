"""What samples: the engine protocol, its implementations, and a pool of them."""
