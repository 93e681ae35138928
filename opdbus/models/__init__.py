"""Models: the model of each level, its files, and its ONNX graph built from the weights."""
