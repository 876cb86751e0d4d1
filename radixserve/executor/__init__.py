"""The computing half of the engine: StepPlans in, StepResults out. Knows no request."""
