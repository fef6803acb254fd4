# As service.py.
require "socket"
server = TCPServer.new("127.0.0.1", 8000)
loop do
  Thread.new(server.accept) do |client|
    nil until client.gets.strip.empty?
    rows = (0...20000).map { |i| { "name" => i.to_s, "body" => "x" * (i % 2000) } }
    body = Marshal.load(Marshal.dump(rows)).length.to_s
    client.write "HTTP/1.0 200 OK\r\nContent-Length: #{body.length}\r\n\r\n#{body}"
    client.close
  end
end
