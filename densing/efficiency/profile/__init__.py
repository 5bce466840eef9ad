"""What a run spent: its ranks' profiles merged, aligned, compared and stored."""
