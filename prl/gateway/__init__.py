"""The gateway: an OpenAI-compatible address on the running pipeline, for agents that know nothing of prl."""
