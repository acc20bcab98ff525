"""The outcome of work that cannot be done now."""


class Later(Exception):
    """Deliver the work again after `seconds`."""

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(reason)
        self.seconds = seconds
