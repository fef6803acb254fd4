//! The programs of which accounts must add up.

/// A program, and what its account must have.
pub struct Program {
    pub name: &'static str,
    /// Programs and files without which it cannot run.
    pub needs: &'static [&'static str],
    /// Text files in its folder.
    pub files: &'static [(&'static str, &'static str)],
    /// For sh: it ends with `exec`.
    pub script: &'static str,
    /// The beginning of the name of the process then.
    pub comm: &'static str,
    /// What it reads, and how often; its input stays open.
    pub input: &'static str,
    pub times: usize,
    /// A socket of its own, and what is sent there, with NUMBER counting up.
    pub socket: &'static str,
    pub request: &'static str,
    /// The beginning of an allocator's or runtime's name.
    pub allocator: &'static str,
    /// The kind of which it has at least this many MiB.
    pub most: (&'static str, u64),
    /// Whether the gate has it.
    pub quick: bool,
}

const NONE: Program = Program {
    name: "",
    needs: &[],
    files: &[],
    script: "",
    comm: "",
    input: "",
    times: 1,
    socket: "",
    request: "",
    allocator: "glibc",
    most: ("heap-live", 1),
    quick: false,
};

/// Python with all its blocks from malloc, a third of them free again, on an allocator that is put in front.
macro_rules! python {
    ($before:literal) => {
        concat!(
            "export PYTHONMALLOC=malloc; ",
            $before,
            " /usr/bin/python3 -c 'import time; x = [\"s\" * (i % 700) for i in range(100000)]; del x[::3]; time.sleep(600)'"
        )
    };
}

const GO: &str = r#"package main
import ("bytes"; "fmt"; "net"; "net/http")
var kept [][]byte
func main() {
    for i := 0; i < 20000; i++ { kept = append(kept, bytes.Repeat([]byte{1}, 1000)) }
    listener, err := net.Listen("tcp", "127.0.0.1:0")
    if err != nil { panic(err) }
    http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, len(kept)) })
    panic(http.Serve(listener, nil))
}
"#;

const RUST: &str = r#"use std::{net::TcpListener, thread, time::Duration};
fn main() {
    let kept: Vec<String> = (0..200_000).map(|i| format!("entry {i} of a service")).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for _ in 0..4 { thread::spawn(|| { let x = vec![1u8; 100_000]; thread::sleep(Duration::from_secs(600)); drop(x) }); }
    for stream in listener.incoming() { drop(stream); println!("{}", kept.len()); }
}
"#;

const JAVA: &str = r#"public class Idle {
    static java.util.ArrayList<byte[]> kept = new java.util.ArrayList<>();
    public static void main(String[] a) throws Exception {
        for (int i = 0; i < 30000; i++) kept.add(new byte[1000]);
        Thread.sleep(600000);
    }
}
"#;

const C: &str = r#"#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *all[60000];
int main(void) {
    for (int i = 0; i < 60000; i++) all[i] = memset(malloc(50 + i % 900), 1, 50 + i % 900);
    for (int i = 0; i < 60000; i += 3) free(all[i]);
    pause();
    return 0;
}
"#;

const NGINX: &str = "daemon off; worker_processes 2; pid nginx.pid; error_log stderr;
events { worker_connections 4096; }
http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fast; uwsgi_temp_path u; scgi_temp_path s;
  server { listen unix:socket; location / { return 200 'ok'; } } }";

const HAPROXY: &str = "global\n  maxconn 2000\ndefaults\n  mode http\n  timeout connect 1s\n  timeout client 1s\n  timeout server 1s\nfrontend f\n  bind unix@socket\n  http-request return status 200\n";

const APACHE: &str = "ServerRoot .\nPidFile httpd.pid\nServerName localhost\nListen 127.0.0.1:7497\nErrorLog error.log
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n";

pub const PROGRAMS: &[Program] = &[
    Program {
        name: "python3",
        needs: &["/usr/bin/python3"],
        script: "exec /usr/bin/python3 -c 'import time; x = [str(i) for i in range(300000)]; time.sleep(600)'",
        comm: "python3",
        allocator: "CPython",
        most: ("runtime-heap", 14),
        quick: true,
        ..NONE
    },
    Program {
        name: "perl",
        needs: &["perl"],
        script: "exec perl -e 'my @a = map {{x => $_}} 1..100000; sleep 600'",
        comm: "perl",
        most: ("heap-live", 15),
        quick: true,
        ..NONE
    },
    Program {
        name: "node",
        needs: &["node"],
        script: "exec node -e 'const a = Array.from({length: 200000}, (_, i) => ({i})); setTimeout(() => a, 600000)'",
        comm: "node",
        allocator: "V8",
        most: ("runtime-heap", 6),
        quick: true,
        ..NONE
    },
    Program {
        name: "bash",
        needs: &["bash"],
        script: "exec bash -c 'x=$(seq 1 100000); while read -r line; do echo $line; done; echo $x'",
        comm: "bash",
        most: ("file", 1),
        quick: true,
        ..NONE
    },
    Program {
        name: "redis-server",
        needs: &["redis-server"],
        script: "exec redis-server --port 0 --unixsocket $PWD/socket --save ''",
        comm: "redis-server",
        socket: "socket",
        request: "SET key:NUMBER xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n",
        allocator: "jemalloc",
        most: ("heap-live", 8),
        ..NONE
    },
    Program {
        name: "memcached",
        needs: &["memcached"],
        script: "exec memcached -u root -s $PWD/socket -m 64",
        comm: "memcached",
        socket: "socket",
        request: "set key:NUMBER 0 0 100 noreply\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n",
        most: ("heap-live", 8),
        ..NONE
    },
    Program {
        name: "java",
        needs: &["java", "javac"],
        files: &[("Idle.java", JAVA)],
        script: "javac Idle.java; exec java -Xmx256m Idle",
        comm: "java",
        allocator: "JVM",
        most: ("runtime-heap", 25),
        ..NONE
    },
    Program {
        name: "nginx",
        needs: &["/usr/sbin/nginx"],
        files: &[("nginx.conf", NGINX)],
        script: "exec /usr/sbin/nginx -p $PWD -c nginx.conf",
        comm: "nginx",
        most: ("file", 1),
        ..NONE
    },
    Program {
        name: "haproxy",
        needs: &["/usr/sbin/haproxy"],
        files: &[("haproxy.cfg", HAPROXY)],
        script: "exec /usr/sbin/haproxy -W -f haproxy.cfg",
        comm: "haproxy",
        most: ("file", 3),
        ..NONE
    },
    Program {
        name: "apache2",
        needs: &["/usr/sbin/apache2"],
        files: &[("httpd.conf", APACHE)],
        script: "exec /usr/sbin/apache2 -d $PWD -f $PWD/httpd.conf -DFOREGROUND",
        comm: "apache2",
        most: ("file", 2),
        ..NONE
    },
    Program {
        name: "postgres",
        needs: &["/usr/lib/postgresql/*/bin/initdb", "setpriv"],
        script: r#"bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1); as=; if [ $(id -u) = 0 ]; then
            chown postgres .; as="setpriv --reuid postgres --clear-groups"; fi
            $as $bin/initdb -D data -A trust -N; exec $as $bin/postgres -D data -k $PWD -h ''"#,
        comm: "postgres",
        most: ("file", 5),
        ..NONE
    },
    Program {
        name: "mariadbd",
        needs: &["/usr/sbin/mariadbd", "mariadb-install-db"],
        script: "mariadb-install-db --no-defaults --user=root --datadir=$PWD/data --auth-root-authentication-method=normal; \
            exec /usr/sbin/mariadbd --no-defaults --user=root --datadir=$PWD/data --socket=$PWD/socket --skip-networking",
        comm: "mariadbd",
        most: ("heap-live", 10),
        ..NONE
    },
    Program {
        name: "chromium",
        needs: &["chromium"],
        script: "exec chromium --headless --no-sandbox --disable-gpu --user-data-dir=$PWD/profile \
            --remote-debugging-port=0 'data:text/html,<p>a page</p>'",
        comm: "chromium",
        allocator: "V8",
        most: ("file", 50),
        ..NONE
    },
    Program {
        name: "git",
        needs: &["git"],
        script: "git init -q r; cd r; exec git fast-import --quiet",
        comm: "git",
        input: "blob\ndata <<EOF\nline\nEOF\n",
        times: 20_000,
        most: ("file", 1),
        ..NONE
    },
    Program {
        name: "gcc (cc1)",
        needs: &["gcc"],
        files: &[(
            "a.c",
            "#include <stdio.h>\n#include <stdlib.h>\n#include <pthread.h>\nint f(int x) { return x * 2; }\n#include \"fifo\"\n",
        )],
        script: "mkfifo fifo; exec $(gcc -print-prog-name=cc1) -quiet a.c -o a.s",
        comm: "cc1",
        most: ("file", 10),
        ..NONE
    },
    Program {
        name: "ruby",
        needs: &["ruby"],
        script: r##"exec ruby -e 'a = (1..200000).map{|i| "s#{i}"}; sleep 600'"##,
        comm: "ruby",
        allocator: "Ruby",
        most: ("runtime-heap", 7),
        ..NONE
    },
    Program {
        name: "php",
        needs: &["php"],
        script: r#"exec php -r '$a = []; for ($i = 0; $i < 200000; $i++) $a[] = "x$i"; sleep(600);'"#,
        comm: "php",
        allocator: "PHP",
        most: ("runtime-heap", 7),
        ..NONE
    },
    Program {
        name: "Go service",
        needs: &["go"],
        files: &[("main.go", GO), ("go.mod", "module service\n")],
        script: "go build -o service .; exec ./service",
        comm: "service",
        allocator: "Go",
        most: ("runtime-heap", 18),
        ..NONE
    },
    Program {
        name: "Rust service",
        needs: &["rustc"],
        files: &[("service.rs", RUST)],
        script: "HOME= rustc -O service.rs; exec ./service",
        comm: "service",
        most: ("heap-live", 9),
        ..NONE
    },
    Program {
        name: "lua",
        needs: &["lua5.4"],
        script: "exec lua5.4 -e 'local t = {} for i = 1, 200000 do t[i] = {i} end io.read()'",
        comm: "lua5.4",
        most: ("heap-live", 12),
        ..NONE
    },
    Program {
        name: "sqlite3",
        needs: &["sqlite3"],
        script: "exec sqlite3 :memory:",
        comm: "sqlite3",
        input: "create table t(a); with recursive c(x) as (select 1 union all select x + 1 from c where x < 200000) \
            insert into t select 'text of row ' || x from c; select count(*) from t;\n",
        most: ("heap-live", 4),
        ..NONE
    },
    Program {
        name: "gdb",
        needs: &["gdb"],
        script: "exec gdb -q -nx -batch-silent -ex 'file bash' -ex 'info functions read' -ex 'shell sleep 600' /usr/bin/gdb",
        comm: "gdb",
        most: ("heap-live", 3),
        ..NONE
    },
    Program {
        name: "gawk",
        needs: &["gawk"],
        script: "exec gawk 'BEGIN { for (i = 0; i < 200000; i++) a[i] = \"x\" i; getline }'",
        comm: "gawk",
        most: ("heap-live", 10),
        ..NONE
    },
    Program {
        name: "vim",
        needs: &["vim"],
        script: "exec vim -N -u NONE -es",
        comm: "vim",
        input: "call append(0, range(100000))\n",
        most: ("heap-live", 1),
        ..NONE
    },
    Program {
        name: "qemu",
        needs: &["qemu-system-x86_64"],
        script: "exec qemu-system-x86_64 -M pc -accel tcg -m 64 -display none -serial none -monitor stdio -nodefaults",
        comm: "qemu-system-x86",
        most: ("file", 8),
        ..NONE
    },
    Program {
        name: "python3 on jemalloc",
        needs: &["/usr/bin/python3", "/usr/lib/*/libjemalloc.so.2"],
        script: python!("export LD_PRELOAD=$(ls /usr/lib/*/libjemalloc.so.2); exec"),
        comm: "python3",
        allocator: "jemalloc",
        most: ("heap-live", 20),
        ..NONE
    },
    Program {
        name: "python3 on tcmalloc",
        needs: &["/usr/bin/python3", "/usr/lib/*/libtcmalloc.so.4"],
        script: python!("export LD_PRELOAD=$(ls /usr/lib/*/libtcmalloc.so.4); exec"),
        comm: "python3",
        allocator: "tcmalloc",
        most: ("heap-live", 20),
        ..NONE
    },
    Program {
        name: "python3 on mimalloc",
        needs: &["/usr/bin/python3", "/usr/lib/*/libmimalloc.so.2"],
        script: python!("export LD_PRELOAD=$(ls /usr/lib/*/libmimalloc.so.2); exec"),
        comm: "python3",
        allocator: "mimalloc",
        most: ("heap-live", 20),
        ..NONE
    },
    Program {
        name: "python3 on neap",
        needs: &["/usr/bin/python3"],
        script: python!("exec $NEAP run --"),
        comm: "python3",
        allocator: "neap",
        most: ("heap-live", 20),
        quick: true,
        ..NONE
    },
    Program {
        name: "a static program on musl",
        needs: &["musl-gcc"],
        files: &[("a.c", C)],
        script: "musl-gcc -static -O1 -fno-builtin a.c -o program; exec ./program",
        comm: "program",
        allocator: "musl",
        most: ("heap-live", 18),
        ..NONE
    },
    Program {
        name: "a static program on glibc",
        needs: &["cc"],
        files: &[("a.c", C)],
        script: "cc -static -O1 -fno-builtin a.c -o program; exec ./program",
        comm: "program",
        most: ("heap-live", 18),
        quick: true,
        ..NONE
    },
];
