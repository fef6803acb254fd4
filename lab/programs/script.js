// Buffers outside of V8's heap, and objects in it. node script.js COUNT
const count = Number(process.argv[2]);
const kept = [];
let sum = 0;
for (let number = 0; number < count; number++) {
  const buffer = Buffer.alloc(5000 + ((number * 7919) % 60000), number % 251);
  kept[number % 500] = { number, buffer, text: buffer.toString("hex", 0, 100) };
  sum = (sum * 31 + buffer[buffer.length - 1] + kept[number % 500].text.length) % 1000000007;
}
const packed = require("zlib").deflateSync(Buffer.concat(kept.map((entry) => entry.buffer)));
sum += require("zlib").inflateSync(packed).length;
const text = JSON.stringify(kept.map((entry) => [entry.number, entry.text]));
for (const [number] of JSON.parse(text)) sum += number;
console.log(sum);
