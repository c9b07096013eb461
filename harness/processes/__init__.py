"""The oracle, the contestant, and what the referee needs to keep them apart and in step."""
