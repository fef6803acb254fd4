"""A service that allocates for each request, and answers with the number of its objects."""
import http.server
import json


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        rows = json.loads(json.dumps([{"name": str(i), "body": "x" * (i % 2000)} for i in range(20000)]))
        body = str(len(rows)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
