"""Stands for `tools/gpu_steps.py`: notes each step, and ends it as `plan.json` in DIR says."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("step")
parser.add_argument("--out", type=Path)
parser.add_argument("--backend", default="")
parser.add_argument("--seconds", type=float)
parser.add_argument("--inputs")
options = parser.parse_args()

plan = json.loads((options.out / "plan.json").read_text())
if options.step == "backends":
    (options.out / "backends.json").write_text(json.dumps(plan["backends"]))
with (options.out / "order.txt").open("a") as file:
    file.write(f"{options.step} {options.backend} {options.seconds or 0:.0f}\n")
print("told")
sys.exit(plan["statuses"].get(f"{options.step} {options.backend}".strip(), 0))
