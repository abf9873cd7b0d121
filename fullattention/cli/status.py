"""Exit statuses of the commands."""

RIGHT, WRONG, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Right, or done; a candidate is wrong; an argument makes no sense, or nothing could be
run; Ctrl-C."""
