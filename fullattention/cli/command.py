"""The commands together, and what each of them does with an error of use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fullattention.backends import UnavailableError
from fullattention.cli import (
    backends,
    bench,
    check,
    choose,
    fuzz,
    pack,
    report,
    results,
    verify,
    workloads,
)
from fullattention.reports.visible import visible
from fullattention.status import UNREAD, USAGE, status_of, terminable
from fullattention.streams import deliver, is_read, take_any_text

COMMANDS = (backends, check, verify, fuzz, pack, workloads, bench, report, choose, results)

SUITE = (
    "filelock",
    "ml_dtypes",
    "msgspec",
    "pandas",
    "platformdirs",
    "psutil",
    "pytest",
    "tabulate",
    "threadpoolctl",
)
"""Libraries that commands need beyond NumPy; the extra `suite` brings them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 2 with one line on stderr for an error of use."""
    parser = argparse.ArgumentParser(
        prog="fullattention", description="FullAttention on many backends: checked, then timed."
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(subparsers)
    options = parser.parse_args(arguments)
    take_any_text()  # candidates print theirs, and files have any name
    status = _run(options)
    try:
        deliver()
    except BrokenPipeError:
        return UNREAD
    except OSError as error:
        return _usage(f"standard output: {error.strerror}")
    return status


def _run(options: argparse.Namespace) -> int:
    """Run a command, and say what is wrong in its use; returns the exit status."""
    try:
        with terminable():
            status: int = options.run(options)
    except KeyboardInterrupt as interruption:
        print("fullattention: interrupted", file=sys.stderr)
        return status_of(type(interruption))
    except ModuleNotFoundError as error:
        if error.name not in SUITE:
            raise
        return _usage(f"{error.name} is not installed: pip install 'fullattention[suite]'")
    except BrokenPipeError as error:
        return _usage(str(error)) if is_read() else UNREAD
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        return _usage(f"{error.filename}: {error.strerror}" if named else str(error))
    except UnavailableError as error:
        return _usage(str(error))
    except (LookupError, TypeError, ValueError) as error:
        return _usage(error.args[0] if error.args else repr(error))
    return status


def _usage(message: str) -> int:
    print(visible(f"fullattention: {message}"), file=sys.stderr)
    return USAGE
