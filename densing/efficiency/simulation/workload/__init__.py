"""What one training or inference step of a transformer computes, moves and sends."""
