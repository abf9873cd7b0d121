"""`fullattention backends`: what there is, what it can do, or why it cannot run here."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from fullattention.status import RIGHT


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("backends", help="list backends and what they can do")
    parser.add_argument("--json", action="store_true", help="as JSON, with every reason")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the listing."""
    from fullattention.backends.listing import listing

    entries = [dataclasses.asdict(entry) for entry in listing()]
    if options.json:
        print(json.dumps(entries, indent=2))
        return RIGHT
    from fullattention.reports.blocks import as_text
    from fullattention.reports.listing import listing_blocks

    print(as_text(listing_blocks(entries)), end="")
    return RIGHT
