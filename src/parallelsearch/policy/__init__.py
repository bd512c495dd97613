"""Policies: whatever continues a list of segments. `base` is the protocol; the other modules are engines."""
