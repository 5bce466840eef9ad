"""One planner of steps: what the techniques share, with hooks for what they do differently."""
