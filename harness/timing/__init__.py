"""Batches and clocks: what is enqueued behind the gate, and how its time is read from outside."""
