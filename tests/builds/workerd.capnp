using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [(name = "main", worker = .worker)],
  sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "main")],
);

const worker :Workerd.Worker = (
  serviceWorkerScript = "const kept = []; for (let i = 0; i < 64; i++) kept.push(new Uint8Array(1 << 20).fill(1)); console.log('ready'); addEventListener('fetch', (event) => event.respondWith(new Response(kept.length)));",
  compatibilityDate = "2023-02-28",
);
