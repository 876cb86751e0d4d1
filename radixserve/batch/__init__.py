"""A file of requests in, a file of answers out: what `radixserve batch` runs."""
