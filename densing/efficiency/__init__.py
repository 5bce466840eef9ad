"""Cost: how training runs spent their time, and what techniques would gain."""
