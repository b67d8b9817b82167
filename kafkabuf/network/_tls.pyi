import ssl

from kafkabuf.network._io import Connection

class TlsConnection(Connection):
    """A connection for `Poller.register` that speaks TLS: `connected` once its peer has proved to be `host`.

    What fails there fails it: SslAuthenticationError where trying again would not help, else NetworkError. Of a frame
    nothing is copied but spans shorter than 4 KiB, which are encrypted together.
    """

    unsent: int
    def __init__(self, context: ssl.SSLContext, host: str) -> None: ...
