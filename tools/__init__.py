"""Scripts for whoever works on the project; none is installed."""
