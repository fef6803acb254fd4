import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** 16 threads fill direct buffers of 20 kB and drop all but the last of each, then the collector runs; waits for input. */
class Hold {
    static final List<ByteBuffer> KEPT = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < 16; number++) {
            Thread thread = new Thread(Hold::fill);
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        synchronized (KEPT) {
            while (KEPT.size() < threads.size()) KEPT.wait();
        }
        for (int round = 0; round < 3; round++) {
            System.gc();
            Thread.sleep(1000);
        }
        System.out.println("ready");
        System.in.read();
    }

    static void fill() {
        List<ByteBuffer> own = new ArrayList<>();
        for (int number = 0; number < 800; number++) {
            ByteBuffer buffer = ByteBuffer.allocateDirect(20_000);
            for (int at = 0; at < buffer.capacity(); at += 64) buffer.put(at, (byte) 1);
            own.add(buffer);
        }
        synchronized (KEPT) {
            KEPT.add(own.get(own.size() - 1));
            KEPT.notify();
        }
        own = null;
        try {
            Thread.sleep(Long.MAX_VALUE);
        } catch (InterruptedException end) {
            return;
        }
    }
}
