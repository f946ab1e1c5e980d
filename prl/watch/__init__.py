"""``prl watch``: a run in the terminal, whether it goes on or has ended, from its folder and its control address."""
