#!/usr/bin/env python3
"""Stores requests: `receiver.py DIR [STATUS,STATUS…] [CERTIFICATE KEY]`. Prints its port. A request is
DIR/N.json (path and headers) and DIR/N.body, written last. Responses use the statuses in order, then 200."""

import http.server
import json
import os
import ssl
import sys

directory = sys.argv[1]
statuses = [int(status) for status in sys.argv[2].split(",")] if len(sys.argv) > 2 and sys.argv[2] else []
count = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global count
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = statuses.pop(0) if statuses else 200
        headers = {name.lower(): value for name, value in self.headers.items()}
        with open(os.path.join(directory, f"{count}.json"), "w", encoding="utf-8") as file:
            json.dump({"path": self.path, "headers": headers, "status": status}, file)
        hidden = os.path.join(directory, f".{count}.body")
        with open(hidden, "wb") as file:
            file.write(body)
        os.rename(hidden, os.path.join(directory, f"{count}.body"))
        count += 1
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", "1")
        if status == 307:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
if len(sys.argv) > 4:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3], sys.argv[4])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
