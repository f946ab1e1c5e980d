"""Where people already look at curves: TensorBoard, Weights & Biases, MLflow, trackio, and whatever has the same shape.

The run writes its files and knows nothing of this; ``feed.py`` keeps one process a tracker beside it (``child.py``).
"""
