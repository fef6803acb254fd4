// As service.py, with direct buffers, which are malloc's.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;

class Service {
    public static void main(String[] args) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 8000), 0);
        server.createContext("/", exchange -> {
            ArrayList<ByteBuffer> buffers = new ArrayList<>();
            for (int i = 0; i < 20000; i++) buffers.add(ByteBuffer.allocateDirect(i % 2000 + 1));
            byte[] body = String.valueOf(buffers.size()).getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }
}
