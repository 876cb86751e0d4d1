"""radixserve: a prefix-sharing structured-generation runtime."""
