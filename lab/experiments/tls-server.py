"""The server of tls-chunks: HTTPS on loopback, with a certificate made for this run.

    tls-server.py FOLDER

Makes FOLDER/key.pem and FOLDER/certificate.pem, listens on a free port of 127.0.0.1, writes the port to FOLDER/port,
and answers every GET of /BYTES with that many bytes. It is not measured: it runs on the system's malloc.
"""

import datetime
import ipaddress
import os
import socketserver
import ssl
import sys
from http.server import BaseHTTPRequestHandler

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PIECE = bytes(1 << 20)


def make_certificate(folder):
    """Writes a key and a certificate for 127.0.0.1 that is valid for two days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "neap lab")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    text = serialization.Encoding.PEM
    secret = key.private_bytes(text, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with open(os.open(f"{folder}/key.pem", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secret)
    with open(f"{folder}/certificate.pem", "wb") as file:
        file.write(certificate.public_bytes(text))


class Handler(BaseHTTPRequestHandler):
    """Sends as many bytes as the path asks for, until the client has enough."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        left = int(self.path.strip("/"))
        self.send_response(200)
        self.send_header("Content-Length", str(left))
        self.end_headers()
        try:
            while left > 0:
                self.wfile.write(PIECE[: min(left, len(PIECE))])
                left -= len(PIECE)
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingTCPServer):
    """One thread for each connection."""

    daemon_threads = True

    def handle_error(self, *_):
        pass


def main():
    folder = sys.argv[1]
    make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/certificate.pem", f"{folder}/key.pem")
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with open(f"{folder}/port.new", "w", encoding="ascii") as file:
        file.write(str(server.server_address[1]))
    os.rename(f"{folder}/port.new", f"{folder}/port")
    server.serve_forever()


main()
