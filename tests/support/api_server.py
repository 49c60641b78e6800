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
        """Return status and answer, as the real one gives them: a `PUT` without a uid creates what is absent."""
        path = self.path if self.command != "POST" else f"{self.path}/{body['metadata']['name']}"
        present, sent = leases.get(path, {}).get("metadata"), body.get("metadata", {})
        if self.command in ("GET", "DELETE"):
            found = leases.get(path) if self.command == "GET" else leases.pop(path, None)
            return (404, {"message": "not found"}) if found is None else (200, found)
        if self.command == "POST" and present:
            return 409, {"message": "already exists"}
        if sent.get("uid") and sent["uid"] != (present or {}).get("uid"):
            return 409, {"message": "precondition failed: uid"}
        if self.command == "PUT" and present and sent["resourceVersion"] != present["resourceVersion"]:
            return 409, {"message": "the object has been modified"}
        self.server.version += 1
        version = str(self.server.version)
        uid = (present or {}).get("uid", f"uid-{version}")
        leases[path] = body | {"metadata": sent | {"uid": uid, "resourceVersion": version}}
        return 200 if present else 201, leases[path]

    do_GET = do_POST = do_PUT = do_DELETE = answer

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
