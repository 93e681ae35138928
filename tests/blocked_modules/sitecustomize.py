"""On PYTHONPATH, as if no runtime for models were installed, in child processes too."""

import sys

for name in ("onnxruntime", "openvino", "huggingface_hub"):
    sys.modules[name] = None  # type: ignore[assignment] -- importing it raises then
