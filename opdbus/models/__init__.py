"""Which model a level means, where its files lie, and its ONNX graph built from the weights."""
