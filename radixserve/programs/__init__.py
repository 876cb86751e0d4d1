"""Compiled programs, run in the front: no round trip per call."""
