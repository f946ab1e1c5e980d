"""What a step minimises, in pure functions on tensors: policy losses, aggregation, and the penalty to a reference."""
