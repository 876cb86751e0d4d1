"""The deciding half of the engine: who runs, on which pages, and when it ends. No torch."""
