"""Measuring servers of the OpenAI completions dialect: client, workloads, rounds, tables."""
