using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (services = [(name = "main", worker = .worker)]);

const worker :Workerd.Worker = (
  serviceWorkerScript = "const kept = []; for (let i = 0; i < 64; i++) kept.push(new Uint8Array(1 << 20).fill(1)); console.log('ready'); addEventListener('fetch', (event) => event.respondWith(new Response(kept.length)));",
  compatibilityDate = "2023-02-28",
);
