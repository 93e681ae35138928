"""Profile a forward pass of torch in fp32 and bf16, in an environment that has it.

Its request is the command line's JSON; it prints the operators' milliseconds as JSON.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from typing import Any


def profile(request: dict[str, Any], precision: str) -> dict[str, Any]:
    """Run one batch on one thread, timed without the profiler and then with it."""
    import torch
    from torch.profiler import ProfilerActivity
    from transformers import AutoModel

    torch.set_num_threads(1)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = AutoModel.from_pretrained(request["folder"], dtype=dtype).eval()
    shape = (request["rows"], request["tokens"])
    ids = torch.randint(1000, 20000, shape)
    mask = torch.ones_like(ids)
    runs = request["runs"]
    seconds = []
    with torch.inference_mode():
        for _ in range(runs):
            began = time.process_time()
            model(input_ids=ids, attention_mask=mask)
            seconds.append(time.process_time() - began)
        # of each call of an operator, the fastest run: other processes interrupt most of them
        calls: dict[tuple[str, int], float] = {}
        for _ in range(runs):
            with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiled:
                model(input_ids=ids, attention_mask=mask)
            numbers: Counter[str] = Counter()
            for event in sorted(profiled.events(), key=lambda event: event.time_range.start):
                call = event.key, numbers[event.key]
                numbers[event.key] += 1
                calls[call] = min(calls.get(call, math.inf), event.self_cpu_time_total)
    spent: dict[str, float] = {}
    for (name, _), microseconds in calls.items():
        own = name.removeprefix("aten::")
        spent[own] = spent.get(own, 0.0) + microseconds / 1000
    return {
        "precision": precision,
        "milliseconds": 1000 * min(seconds),
        "operators": {name: total for name, total in spent.items() if total > 0},
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps([profile(asked, precision) for precision in ("fp32", "bf16")]))
