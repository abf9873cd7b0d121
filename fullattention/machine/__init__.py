"""The machine and its libraries: everything a figure depends on."""
