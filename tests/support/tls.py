"""A proxy with TLS before a server, with a certificate that signs itself."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# For 127.0.0.1 and localhost, valid until 2126. The key protects nothing.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIURMLQODbePlmXO4KLLasK8dQS4G4wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNzA5NDYxNVoYDzIxMjYxMDI0
MDk0NjE1WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATm3+ESCMOxiKgZBPtk2sXwd18Thf8zLyuPWjD36mneQLLtvpoSB8pE
q3Fj1pVt5T/XgmFwfk5iaQHXZPHnFBbAo28wbTAdBgNVHQ4EFgQU0EqXO6aiXvOd
vuRyc1gQw/VFtDUwHwYDVR0jBBgwFoAU0EqXO6aiXvOdvuRyc1gQw/VFtDUwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgB3G/58+ggIzk7s+ihf5XL7Lw4xExfNN0s0GXFwd0zPkCIQD0
1x6tdpmqLHiAtMMk4+ZUbH/XrnjpmdRDjdWPcRl8DQ==
-----END CERTIFICATE-----
"""
_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgN40aCwj2S2JwBoVj
o0qHXgrnM/XMqCqoBWRaen+r9WyhRANCAATm3+ESCMOxiKgZBPtk2sXwd18Thf8z
LyuPWjD36mneQLLtvpoSB8pEq3Fj1pVt5T/XgmFwfk5iaQHXZPHnFBbA
-----END PRIVATE KEY-----
"""


def write_certificate(folder: Path) -> Path:
    """Write the certificate to a file, for clients that trust it."""
    path = folder / "certificate.pem"
    path.write_text(CERTIFICATE)
    return path


@contextmanager
def tls_proxy(port: int, folder: Path) -> Iterator[str]:
    """Serve the server at *port* by TLS on another port; yield the URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    both = folder / "proxy.pem"
    both.write_text(CERTIFICATE + _KEY)
    context.load_cert_chain(both)
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(plain,), daemon=True).start()

    def serve(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
            client = closing.enter_context(context.wrap_socket(plain, server_side=True))
            server = closing.enter_context(socket.create_connection(("127.0.0.1", port)))
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
