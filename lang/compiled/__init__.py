"""Compiled programs: the graph of a program's calls, how it is found, kept and run."""
