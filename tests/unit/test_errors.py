"""Messages for people name the causes of errors."""

from nats.errors import NoServersError

from turnlog.events.errors import cause


def test_an_error_without_a_message_is_named_in_words() -> None:
    assert cause(TimeoutError()) == "timed out"
    assert cause(ConnectionResetError()) == "ConnectionResetError"
    assert cause(OSError(111, "Connection refused")) == "[Errno 111] Connection refused"
    assert cause(NoServersError()) == "nats: no servers available for connection"
