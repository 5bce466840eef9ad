"""Published techniques that hide communication: plans, claims and real runs."""
