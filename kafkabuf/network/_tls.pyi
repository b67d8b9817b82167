import ssl

from kafkabuf.network._io import Connection

class TlsConnection(Connection):
    """A connection for `Poller.register` that speaks TLS: `connected` when the peer has proved that it is `host`.

    A TLS failure fails the connection: with SslAuthenticationError if a retry would not help, else with NetworkError.
    Spans shorter than 4 KiB are copied and encrypted together; longer spans are not copied.
    """

    unsent: int
    def __init__(self, context: ssl.SSLContext, host: str) -> None: ...
