"""Serves the files of a folder as servers do, the bad ones too.

serve.py FOLDER: prints its port. The first part of an address says how:
"breaks" hangs up after half of what was asked for, "dies" also gives no rest,
"plain" knows no ranges, "wrong" gives as many other bytes; else all is well.
Ranges asked for go to stderr, beside the addresses.
"""

import http.server
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        *how, name = self.path.strip("/").split("/")
        asked = self.headers.get("Range", "")
        print(self.path, asked, file=sys.stderr, flush=True)
        if not (folder / name).is_file():
            self.send_error(404)
            return
        content = (folder / name).read_bytes()
        if "wrong" in how:
            content = bytes(255 - byte for byte in content)
        begin = 0
        if asked and "plain" not in how:
            begin = int(asked.removeprefix("bytes=").split("-")[0])
            if "dies" in how or begin >= len(content):
                self.send_error(503 if "dies" in how else 416)
                return
            self.send_response(206)
            last = len(content) - 1
            self.send_header(
                "Content-Range", f"bytes {begin}-{last}/{len(content)}"
            )
        else:
            self.send_response(200)
        content = content[begin:]
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if {"breaks", "dies"} & {*how} and len(content) > 1000:
            content = content[: len(content) // 2]
        try:
            self.wfile.write(content)
        except ConnectionError:
            pass  # has enough

    def log_message(self, *_):
        pass


with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
