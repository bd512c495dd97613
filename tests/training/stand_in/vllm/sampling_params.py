"""What TRL imports from here."""


class StructuredOutputsParams:
    """Not used by this project."""
