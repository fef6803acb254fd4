// As service.py, with buffers, which are malloc's.
const http = require("http");
const zlib = require("zlib");
http.createServer((request, response) => {
  const buffers = Array.from({ length: 20000 }, (_, i) => Buffer.alloc(4096 + (i % 2000), "x"));
  zlib.deflate(Buffer.concat(buffers), (error, packed) => {
    response.end(String(error ? error : zlib.inflateSync(packed).length >= packed.length ? buffers.length : 0));
  });
}).listen(8000, "127.0.0.1");
