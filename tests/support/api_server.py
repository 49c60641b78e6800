"""An imitation of the Leases of a Kubernetes API server, over TLS with a bearer token."""

import contextlib
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock.cli.start.certs import certs

TOKEN = "token-1"


class Leases(BaseHTTPRequestHandler):
    """`server.leases` is by path; each write has the next resource version."""

    def answer(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.say(401, message="Unauthorized")
        with self.server.lock:
            return self.say(*self.handled(body, self.server.leases))

    def handled(self, body, leases):
        path = self.path
        if self.command == "POST":
            path += "/" + body["metadata"]["name"]
            if path in leases:
                return 409, {"message": "already exists"}
        elif path not in leases:
            return 404, {"message": "not found"}
        elif (
            self.command == "PUT" and body["metadata"]["resourceVersion"] != leases[path]["metadata"]["resourceVersion"]
        ):
            return 409, {"message": "the object has been modified"}
        if self.command != "GET":
            self.server.version += 1
            body["metadata"]["resourceVersion"] = str(self.server.version)
            leases[path] = body
        return 201 if self.command == "POST" else 200, leases[path]

    do_GET = do_POST = do_PUT = answer

    def say(self, status, found=None, **fields):
        data = json.dumps(found or fields).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(folder):
    """Serve on loopback; yield the server and the variables of a pod."""
    certs(folder, host=None, days=1, client_certificates=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "rest.pem", folder / "rest.key")
    (folder / "ca.pem").rename(folder / "ca.crt")
    (folder / "token").write_text(TOKEN)
    with ThreadingHTTPServer(("127.0.0.1", 0), Leases) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.leases, server.lock, server.version = {}, threading.Lock(), 0
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server, pod(folder, f"127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def pod(folder, address):
    """Return the variables of a pod, with the service account in a folder."""
    host, _, port = address.rpartition(":")
    return {
        "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "PENSTOCK_KUBERNETES_ACCOUNT": str(folder)
    }  # fmt: skip
