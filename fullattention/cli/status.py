"""Exit statuses of the commands."""

RIGHT, WRONG, USAGE = 0, 1, 2
"""Right, or done; a candidate is wrong; an argument makes no sense, or nothing could be run."""
