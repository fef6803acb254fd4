// Uses a tool with an allocator of its own, prints "ready" and waits; without an argument it holds memory itself.
import { mkdirSync, writeFileSync } from "node:fs";

const what = process.argv[2];
const lines = Array.from(
    { length: 6000 },
    (_, i) => `export function f${i}(a, b) { const x = [a, b, ${i}]; return x.map(y => ({ y, z: "s${i}" + y })).filter(q => q.z.length > 3); }`,
);
const source = lines.join("\n");
mkdirSync("source", { recursive: true });
writeFileSync("source/in.js", source);
const input = `${process.cwd()}/source/in.js`;
let kept = [];
if (what === "swc") {
    const swc = (await import("@swc/core")).default;
    for (let i = 0; i < 20; i++) swc.transformSync(source, { jsc: { target: "es5" } });
} else if (what === "rolldown") {
    const bundle = await (await import("rolldown")).rolldown({ input });
    for (let i = 0; i < 5; i++) await bundle.generate({ minify: true });
} else if (what === "rspack") {
    const { rspack } = await import("@rspack/core");
    const options = { entry: input, mode: "production", output: { path: `${process.cwd()}/built` } };
    await new Promise((done) => rspack(options, done));
} else {
    for (let i = 0; i < 300; i++) kept.push(Buffer.alloc(100000 + i, 1));
    for (let i = 0; i < 400000; i++) kept.push({ x: i, s: "k" + i });
}
console.log("ready");
setInterval(() => kept.length, 1000);
