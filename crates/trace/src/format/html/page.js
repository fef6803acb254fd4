'use strict';
(() => {
const $ = (id) => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const KINDS = data.kinds;
const N = data.shown;
const PER_PAGE = 100;
const TOP = 15;
const MORE = 200;
const LONGEST_PATH = 36;
const MOST_BARS = 250;
const MOST_CALLERS = 10;

// ---- The faults, unpacked: a column each. See pack.rs.

const F = unpack($('faults').textContent.trim());

function unpack(text) {
  const bytes = atob(text);
  let at = 0;
  const take = () => {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes.charCodeAt(at++);
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  };
  const signed = () => {
    const value = take();
    return value % 2 ? -(value - 1) / 2 : value / 2;
  };
  const f = {
    flags: new Uint8Array(N), kind: new Uint8Array(N), number: new Float64Array(N), time: new Float64Array(N),
    took: new Float64Array(N), page: new Float64Array(N), offset: new Uint16Array(N), shift: new Uint8Array(N),
    thread: new Int32Array(N), mapping: new Int32Array(N), code: new Int32Array(N), data: new Int32Array(N),
    callers: new Int32Array(N),
  };
  let number = 0, time = 0, page = 0;
  for (let i = 0; i < N; i++) {
    const flags = take();
    f.flags[i] = flags >> 4;
    f.kind[i] = flags & 15;
    f.number[i] = number += take() + 1;
    f.time[i] = time += signed();
    f.took[i] = take() - 1;
    f.page[i] = page += signed();
    f.offset[i] = take();
    f.shift[i] = take();
    f.thread[i] = take() - 1;
    f.mapping[i] = take() - 1;
    f.code[i] = take() - 1;
    f.data[i] = take() - 1;
    f.callers[i] = take() - 1;
  }
  return f;
}

const GUESSED = 1, DATA = 2, KERNEL = 4;
const text = (position) => (position < 0 ? '' : data.texts[position]);
// The middle of a long path is left out; the whole of it appears on hover.
function shortPath(path) {
  if (path.length <= LONGEST_PATH || !path.includes('/')) return path;
  const parts = path.split('/');
  let tail = '/' + parts.pop();
  while (parts.length > 2 && tail.length + parts.at(-1).length < LONGEST_PATH / 2) tail = '/' + parts.pop() + tail;
  return '/' + parts[1] + '/\u2026' + tail;
}
const nameOf = (path) => (path.startsWith('[') ? path : path.slice(path.lastIndexOf('/') + 1) || path);

// Whether the trace has service times.
const TIMED = F.took.some((took) => took >= 0);
// Where the block at an address was allocated: `100 bytes from make (a.c:4) in /tmp/a`, for each text.
const siteOf = data.texts.map((one) => /^\d+ bytes from (.+)$/.exec(one)?.[1] ?? '');

// Functions: what the code table names, each once for each object.
const functions = [];
const functionOf = (() => {
  const known = new Map();
  return data.code.map(([name, object]) => {
    const key = name + ' ' + object;
    if (!known.has(key)) {
      known.set(key, functions.length);
      functions.push({ name: text(name), object: text(object) });
    }
    return known.get(key);
  });
})();

// ---- Small things.

function el(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === 'class') node.className = value;
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'style') node.style.cssText = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== ''));
  return node;
}

const grouped = (n) => n.toLocaleString('en');
const hexPage = (page, offset) => '0x' + (page.toString(16) + offset.toString(16).padStart(3, '0')).replace(/^0+(?=.)/, '');
const address = (i) => hexPage(F.page[i], F.offset[i]);
const milliseconds = (ns) => (ns / 1e6).toFixed(3);
// Three digits or more, in the unit that fits.
function duration(ns) {
  const [unit, factor] = ns >= 1e9 ? ['s', 1e9] : ns >= 1e6 ? ['ms', 1e6] : ['\u00b5s', 1e3];
  const value = ns / factor;
  return (ns === 0 ? '0' : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)) + ' ' + unit;
}
const microseconds = (ns) => (ns < 0 ? '' : (ns / 1e3).toFixed(1));

function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit++; }
  return (bytes < 10 && bytes % 1 ? bytes.toFixed(1) : Math.round(bytes)) + ' ' + units[unit];
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia('(prefers-color-scheme: dark)');

// Viridis, without the end that is too close to the page.
const VIRIDIS = [[68, 1, 84], [71, 39, 117], [62, 72, 136], [49, 102, 141], [38, 130, 141], [36, 157, 136],
  [68, 183, 116], [134, 206, 75], [206, 224, 38], [253, 231, 37]];
function ramp(share) {
  const [low, high] = dark.matches ? [0.22, 1] : [0, 0.82];
  const at = (low + share * (high - low)) * (VIRIDIS.length - 1);
  const first = Math.min(Math.floor(at), VIRIDIS.length - 2);
  const mix = VIRIDIS[first].map((value, k) => Math.round(value + (VIRIDIS[first + 1][k] - value) * (at - first)));
  return 'rgb(' + mix.join(' ') + ')';
}

// Fits a canvas to its box; the context draws in CSS pixels.
function prepare(canvas, { width, height }) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  return { context, width, height };
}

// ---- The filter, and the faults that pass it.

const filter = { words: [], kind: '', subject: '', thread: '', fn: -1, mapping: '' };
const order = { key: 'number', down: false };
let view = new Int32Array(0);
let page = 0;

function matcher(word) {
  const has = (...texts) => texts.some((one) => one.toLowerCase().includes(word));
  const code = data.code.map(([name, object, line]) => has(text(name), text(object), text(line)));
  const mapping = data.mappings.map((row) => has(row.name));
  const texts = data.texts.map((one) => has(one));
  const callers = [];
  data.callers.forEach(([outwards, name], k) => { callers[k] = texts[name] || (outwards >= 0 && callers[outwards]); });
  const thread = data.threads.map(([tid, name]) => has(name, String(tid)));
  const kind = KINDS.map(([name, label]) => has(name, label));
  const digits = /^(0x)?[0-9a-f]{3,16}$/.test(word) ? '0x' + word.replace(/^0x/, '') : '';
  return (i) => code[F.code[i]] || mapping[F.mapping[i]] || texts[F.data[i]] || thread[F.thread[i]] ||
    callers[F.callers[i]] || kind[F.kind[i]] || (digits !== '' && address(i).startsWith(digits));
}

function update() {
  const matchers = filter.words.map(matcher);
  const found = new Int32Array(N);
  let count = 0;
  for (let i = 0; i < N; i++) {
    if (filter.kind !== '' && F.kind[i] !== +filter.kind) continue;
    if (filter.subject !== '' && ((F.flags[i] & DATA) !== 0) !== (filter.subject === '1')) continue;
    if (filter.thread !== '' && F.thread[i] !== +filter.thread) continue;
    if (filter.fn >= 0 && functionOf[F.code[i]] !== filter.fn) continue;
    if (filter.mapping !== '' && mappingName(i) !== filter.mapping) continue;
    if (!matchers.every((matches) => matches(i))) continue;
    found[count++] = i;
  }
  view = found.slice(0, count);
  if (order.key !== 'number') {
    const column = order.key === 'address' ? F.page : F[order.key];
    view.sort((a, b) => column[a] - column[b] || a - b);
  }
  if (order.down) view.reverse();
  page = 0;
  $('count').textContent = count === N ? grouped(N) + ' faults' : grouped(count) + ' of ' + grouped(N) + ' faults';
  show();
}

const NO_MAPPING = '[unknown]';
const mappingName = (i) => (F.mapping[i] < 0 ? NO_MAPPING : data.mappings[F.mapping[i]].name);

function show() {
  showRows();
  showTops();
  drawTimeline();
  if ($('time-details').open) showTimeTable();
  showSpace();
}

// A button that filters by what it names.
function pick(label, act) {
  return el('button', { type: 'button', class: 'link', onclick: act }, label);
}

function showChips() {
  const chips = [];
  const chip = (label, clear) => chips.push(el('button', {
    type: 'button', 'aria-label': 'Remove the filter ' + label,
    onclick: () => { clear(); showChips(); update(); $('search').focus(); },
  }, label + ' \u00d7'));
  if (filter.fn >= 0) chip(functions[filter.fn].name, () => { filter.fn = -1; });
  if (filter.mapping !== '') chip(nameOf(filter.mapping), () => { filter.mapping = ''; });
  $('chips').replaceChildren(...chips);
}

function pickFunction(fn) { filter.fn = fn; showChips(); update(); }
function pickMapping(name) { filter.mapping = name; showChips(); update(); }
function pickKind(kind) { filter.kind = String(kind); $('kind').value = filter.kind; update(); }

// ---- Top lists.

function share(count, most) {
  return el('div', { class: 'share', 'aria-hidden': 'true', style: 'width:' + (count / most) * 100 + '%' });
}

function list(table, names, rows) {
  const head = el('thead', {}, el('tr', {}, ...names.map((name, k) =>
    el('th', { scope: 'col', class: k ? 'number' : '' }, name))));
  const body = rows.map(({ label, sub, counts, part }) => el('tr', {},
    el('th', { scope: 'row' }, label, sub ? el('span', { class: 'sub', title: sub }, shortPath(sub)) : '', part),
    ...counts.map((count) => el('td', { class: 'number' }, count))));
  table.replaceChildren(head, el('tbody', {}, ...body));
}

// Lists that show more rows than at first.
const longer = new Set();

// One list: `sums` has the count and the time of each key; the largest time first where times are known.
function showTop(id, title, sums, row) {
  const table = $(id);
  table.closest('section').hidden = sums.size === 0 && (id === 'sites' || id === 'callers');
  const by = TIMED ? 1 : 0;
  const sorted = [...sums].sort((a, b) => b[1][by] - a[1][by] || b[1][0] - a[1][0]);
  const entries = sorted.slice(0, longer.has(id) ? MORE : TOP);
  const most = Math.max(1, entries.length ? entries[0][1][by] : 1);
  const columns = TIMED ? [title, 'Time', 'Faults'] : [title, 'Faults'];
  list(table, columns, entries.map(([key, [count, took]]) => ({
    ...row(key), counts: TIMED ? [duration(took), grouped(count)] : [grouped(count)], part: share(by ? took : count, most),
  })));
  if (sorted.length <= TOP) return;
  const rest = Math.min(sorted.length, MORE) - TOP;
  const label = longer.has(id) ? 'Show ' + TOP : 'Show ' + grouped(rest) + ' more';
  table.append(el('tfoot', {}, el('tr', {}, el('td', { colspan: String(columns.length) }, el('button', {
    type: 'button', class: 'link', id: id + '-more', onclick: () => {
      if (!longer.delete(id)) longer.add(id);
      showTops();
      $(id + '-more').focus();
    } }, label)))));
}

function showTops() {
  const kinds = new Map(), fns = new Map(), mappings = new Map(), sites = new Map(), callers = new Map();
  const add = (map, key, took) => {
    const sums = map.get(key);
    if (sums) { sums[0]++; sums[1] += took; } else map.set(key, [1, took]);
  };
  for (const i of view) {
    const took = Math.max(0, F.took[i]);
    add(kinds, F.kind[i], took);
    add(fns, functionOf[F.code[i]], took);
    add(mappings, mappingName(i), took);
    if (F.data[i] >= 0 && siteOf[F.data[i]]) add(sites, siteOf[F.data[i]], took);
    if (F.callers[i] >= 0) add(callers, data.callers[F.callers[i]][1], took);
  }
  showTop('kinds', 'Kind', kinds, (kind) => ({
    label: pick(KINDS[kind][0], () => pickKind(kind)), sub: KINDS[kind][1],
  }));
  showTop('symbols', 'Function', fns, (fn) => ({
    label: pick(functions[fn].name, () => pickFunction(fn)), sub: functions[fn].object,
  }));
  showTop('mappings', 'Mapping', mappings, (name) => ({
    label: pick(nameOf(name), () => pickMapping(name)), sub: nameOf(name) === name ? '' : name,
  }));
  showTop('sites', 'Allocated by', sites, (site) => ({ label: pick(site, () => search(site)), sub: '' }));
  showTop('callers', 'Caller', callers, (name) => ({ label: pick(text(name), () => search(text(name))), sub: '' }));
}

// Filters by the words of a text.
function search(words) {
  $('search').value = words;
  filter.words = words.toLowerCase().split(/\s+/).filter(Boolean);
  update();
}

// ---- Faults over time.

const END = N ? Math.max(1, F.time.reduce((most, time) => Math.max(most, time), 0)) : 1;

function binned(bins) {
  const counts = Array.from({ length: bins }, () => new Uint32Array(KINDS.length));
  for (const i of view) counts[Math.min(bins - 1, Math.floor((F.time[i] / END) * bins))][F.kind[i]]++;
  return counts;
}

function drawTimeline() {
  const { context, width, height } = prepare($('timeline'), $('timeline').getBoundingClientRect());
  const left = 44, bottom = 20, top = 8, right = 8;
  const bins = Math.max(10, Math.min(160, Math.floor((width - left - right) / 5)));
  const counts = binned(bins);
  const sums = counts.map((bin) => bin.reduce((sum, count) => sum + count, 0));
  const most = Math.max(1, ...sums);
  const step = (width - left - right) / bins, tall = height - top - bottom;
  context.font = '11px system-ui, sans-serif';
  context.fillStyle = context.strokeStyle = color('--faint');
  context.textAlign = 'right';
  context.fillText(grouped(most), left - 6, top + 9);
  context.fillText('0', left - 6, top + tall);
  context.textAlign = 'left';
  context.fillText('0', left, height - 5);
  context.textAlign = 'center';
  if (width > 320) context.fillText(duration(END / 2), left + (width - left - right) / 2, height - 5);
  context.textAlign = 'right';
  context.fillText(duration(END), width - right, height - 5);
  context.fillRect(left, top + tall, width - left - right, 1);
  const colors = KINDS.map((_, kind) => color('--k' + kind));
  counts.forEach((bin, k) => {
    let y = top + tall;
    bin.forEach((count, kind) => {
      if (!count) return;
      const h = (count / most) * tall;
      y -= h;
      context.fillStyle = colors[kind];
      context.fillRect(left + k * step, y, Math.max(1, step - 1), Math.max(h, 0.75));
    });
  });
  const peak = sums.indexOf(Math.max(...sums));
  $('timeline').setAttribute('aria-label', 'Chart: ' + grouped(view.length) + ' faults in ' + duration(END) +
    '; most, ' + grouped(sums[peak]) + ', around ' + duration((END * (peak + 0.5)) / bins) + '.');
}

function showTimeTable() {
  const bins = 20, counts = binned(bins);
  const used = KINDS.map((_, kind) => kind).filter((kind) => counts.some((bin) => bin[kind]));
  list($('time-table'), ['From', ...used.map((kind) => KINDS[kind][0])], counts.map((bin, k) => ({
    label: duration((END * k) / bins), counts: used.map((kind) => grouped(bin[kind])), part: '',
  })));
}

function showLegend() {
  const present = new Set(F.kind);
  $('legend').replaceChildren(...KINDS.map(([name, label], kind) => [name, label, kind])
    .filter(([, , kind]) => present.has(kind))
    .map(([name, label, kind]) => el('li', { title: label },
      el('span', { class: 'swatch', 'aria-hidden': 'true', style: 'background:var(--k' + kind + ')' }), name)));
}

// ---- The address space.

// The mappings of each process that have faults, by address: [mapping, number of its faults].
const spaces = (() => {
  const counts = new Map();
  for (let i = 0; i < N; i++) if (F.mapping[i] >= 0) counts.set(F.mapping[i], (counts.get(F.mapping[i]) || 0) + 1);
  const byProcess = new Map();
  for (const entry of counts) {
    const { process } = data.mappings[entry[0]];
    if (!byProcess.has(process)) byProcess.set(process, []);
    byProcess.get(process).push(entry);
  }
  return byProcess;
})();

function showSpace() {
  const entries = spaces.get(+$('process').value) || [];
  const shown = entries.slice().sort((a, b) => b[1] - a[1]).slice(0, MOST_BARS)
    .sort((a, b) => data.mappings[a[0]].page - data.mappings[b[0]].page || a[0] - b[0]);
  const wanted = new Map(shown.map(([mapping]) => [mapping, []]));
  for (const i of view) wanted.get(F.mapping[i])?.push(i);
  const longest = Math.log2(1 + Math.max(1, ...shown.map(([mapping]) => data.mappings[mapping].pages)));
  const bars = [];
  let end = null;
  const rows = shown.flatMap(([mapping]) => {
    const row = data.mappings[mapping], faults = wanted.get(mapping);
    const pages = new Set(faults.map((i) => F.page[i])).size;
    const bar = el('canvas', { class: 'bar', 'aria-hidden': 'true',
      style: 'width:' + (8 + (92 * Math.log2(1 + row.pages)) / longest).toFixed(1) + '%' });
    bars.push([bar, row, faults]);
    const gap = end === null || row.page <= end ? [] : [gapRow(row.page - end)];
    end = Math.max(end ?? 0, row.page + row.pages);
    return [...gap, el('tr', {},
      el('th', { scope: 'row' }, pick(nameOf(row.name), () => pickMapping(row.name)),
        el('span', { class: 'sub' }, [hexPage(row.page, 0), size(row.pages * 4096), row.protection].join(' \u00b7 '))),
      el('td', { class: 'number' }, grouped(pages)), el('td', {}, bar))];
  });
  const head = el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'Mapping'),
    el('th', { scope: 'col', class: 'number' }, 'Pages'), el('th', { scope: 'col' }, 'Touched, in order')));
  $('space').replaceChildren(head, el('tbody', {}, ...rows));
  // All are measured first: drawing in one makes the browser lay out the page again.
  const boxes = bars.map(([bar]) => bar.getBoundingClientRect());
  bars.forEach(([bar, row, faults], k) => drawBar(bar, boxes[k], row, faults));
  const hidden = entries.length - shown.length;
  $('space-note').textContent = 'Mappings without faults are not shown.' +
    (hidden > 0 ? ' Nor are ' + grouped(hidden) + ' with few.' : '');
}

// A gap is as high as its logarithm.
function gapRow(pages) {
  const height = Math.min(3, 0.9 + Math.log2(1 + pages) / 18).toFixed(2);
  return el('tr', { class: 'gap' },
    el('td', { colspan: '3', style: 'height:' + height + 'rem' }, size(pages * 4096) + ' between'));
}

// Each column of pixels has the colour of the first fault in it.
function drawBar(bar, box, row, faults) {
  const { context, width, height } = prepare(bar, box);
  const first = new Float64Array(Math.ceil(width)).fill(Infinity);
  for (const i of faults) {
    const covered = F.shift[i] > 13 ? 2 ** (F.shift[i] - 13) : 1;
    const begin = Math.floor(F.page[i] / covered) * covered - row.page;
    const to = Math.min(first.length, Math.ceil(((begin + covered) / row.pages) * width));
    for (let x = Math.max(0, Math.floor((begin / row.pages) * width)); x < to; x++) first[x] = Math.min(first[x], i);
  }
  first.forEach((i, x) => {
    if (i === Infinity) return;
    context.fillStyle = ramp(N > 1 ? i / (N - 1) : 0);
    context.fillRect(x, 0, 1, height);
  });
}

// ---- The table of faults.

const TIME = END >= 1e9 ? 'Time s' : 'Time ms';

const COLUMNS = [
  ['number', '#', 'number'], ['time', TIME, 'time'], ['took', 'Took \u00b5s', 'took'], ['kind', 'Kind', 'kind'],
  ['', 'Access', ''], ['', 'Thread', ''], ['address', 'Address', 'address'], ['', 'Page', ''],
  ['', 'Instruction', ''], ['', 'Mapping', ''],
];

function showColumns() {
  $('columns').replaceChildren(...COLUMNS.map(([key, name]) => {
    if (!key) return el('th', { scope: 'col', role: 'columnheader' }, name);
    const sorted = order.key === key ? (order.down ? 'descending' : 'ascending') : 'none';
    const arrow = { ascending: ' \u2191', descending: ' \u2193', none: '' }[sorted];
    const button = el('button', { type: 'button', id: 'by-' + key, onclick: () => {
      order.down = order.key === key ? !order.down : key === 'took';
      order.key = key;
      showColumns();
      update();
      $('by-' + key).focus();
    } }, name + arrow);
    return el('th', { scope: 'col', role: 'columnheader', 'aria-sort': sorted }, button);
  }));
}

function cell(name, kind, ...children) {
  return el('td', { role: 'cell', 'data-name': name, class: kind }, ...children);
}

function callersOf(i) {
  const names = [];
  for (let k = F.callers[i]; k >= 0 && names.length < MOST_CALLERS; k = data.callers[k][0]) names.push(text(data.callers[k][1]));
  return names.map((name) => '\u2190 ' + name).join(' ');
}

function faultRow(i) {
  const [, , line, offset] = data.code[F.code[i]];
  const fn = functions[functionOf[F.code[i]]];
  const mapping = data.mappings[F.mapping[i]];
  const [tid, thread, process] = data.threads[F.thread[i]];
  let at = '';
  if (mapping?.offset) at = '+0x' + ((F.page[i] - mapping.page) * 4096 + F.offset[i] + parseInt(mapping.offset, 16)).toString(16);
  const kind = KINDS[F.kind[i]][0] + (F.flags[i] & GUESSED ? '?' : '');
  return el('tr', { role: 'row' },
    cell('#', 'tight', grouped(F.number[i])),
    cell(TIME, 'tight', END >= 1e9 ? (F.time[i] / 1e9).toFixed(6) : milliseconds(F.time[i])),
    cell('Took \u00b5s', 'tight', microseconds(F.took[i])),
    cell('Kind', 'tight', el('span', { class: 'swatch', 'aria-hidden': 'true', style: 'background:var(--k' + F.kind[i] + ')' }), kind),
    cell('Access', 'tight', (F.flags[i] & DATA ? 'data' : 'code') + (F.flags[i] & KERNEL ? ', kernel' : '')),
    cell('Thread', 'tight', tid + ' ' + (thread || data.processes[process][1])),
    cell('Address', 'tight mono', address(i)),
    cell('Page', 'tight', F.shift[i] ? size(2 ** (F.shift[i] - 1)) : ''),
    cell('Instruction', 'long', fn.name + (offset ? '+0x' + offset.toString(16) : ''),
      el('span', { class: 'sub', title: [fn.object, text(line)].filter(Boolean).join(' \u00b7 ') },
        [nameOf(fn.object), shortPath(text(line))].filter(Boolean).join(' \u00b7 ')),
      F.callers[i] >= 0 ? el('span', { class: 'sub' }, callersOf(i)) : ''),
    cell('Mapping', 'long', mapping ? nameOf(mapping.name) + at : NO_MAPPING,
      F.data[i] >= 0 ? el('span', { class: 'sub' }, text(F.data[i])) : ''));
}

function showRows() {
  const pages = Math.max(1, Math.ceil(view.length / PER_PAGE));
  page = Math.max(0, Math.min(page, pages - 1));
  const rows = [];
  for (const i of view.subarray(page * PER_PAGE, (page + 1) * PER_PAGE)) rows.push(faultRow(i));
  $('body').replaceChildren(...rows);
  $('page').value = page + 1;
  $('page').max = pages;
  $('pages').textContent = 'of ' + grouped(pages);
  $('first').disabled = $('previous').disabled = page === 0;
  $('next').disabled = $('last').disabled = page === pages - 1;
}

// ---- Begin.

function options(select, entries) {
  select.append(...entries.map(([value, label]) => el('option', { value: String(value) }, label)));
}

function begin() {
  const lead = [grouped(data.total) + ' faults in ' + duration(END)];
  const kernel = F.flags.reduce((count, flags) => count + (flags & KERNEL ? 1 : 0), 0);
  if (kernel) lead.push(grouped(kernel) + ' of them in kernel mode');
  if (TIMED) lead.push('which took ' + duration(F.took.reduce((sum, took) => sum + Math.max(0, took), 0)));
  $('lead').textContent = lead.join(', ') + '.';
  if (data.shown < data.total) {
    $('cut').hidden = false;
    $('cut').textContent = 'This page has the first ' + grouped(data.shown) + ' faults, and counts no others.';
  }
  const present = new Set(F.kind);
  options($('kind'), KINDS.map(([name], kind) => [kind, name]).filter(([kind]) => present.has(kind)));
  const threads = new Set(F.thread);
  options($('thread'), data.threads.map(([tid, name], k) => [k, tid + ' ' + name]).filter(([k]) => threads.has(k)));
  const sums = [...spaces].map(([process, entries]) => [process, entries.reduce((sum, [, count]) => sum + count, 0)]);
  sums.sort((a, b) => b[1] - a[1]);
  options($('process'), sums.map(([process, count]) => {
    const [pid, name] = data.processes[process];
    return [process, pid + ' ' + name + ' (' + grouped(count) + ' faults)'];
  }));
  $('process-label').hidden = sums.length < 2;
}

function showRamp() {
  const stops = [0, 0.25, 0.5, 0.75, 1].map(ramp);
  document.querySelector('.ramp').style.background = 'linear-gradient(90deg,' + stops.join(',') + ')';
}

let typing = 0;
$('search').addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    search($('search').value);
  }, 120);
});
for (const name of ['kind', 'subject', 'thread']) {
  $(name).addEventListener('change', () => { filter[name] = $(name).value; update(); });
}
$('filters').addEventListener('submit', (event) => event.preventDefault());
$('filters').addEventListener('reset', () => {
  Object.assign(filter, { words: [], kind: '', subject: '', thread: '', fn: -1, mapping: '' });
  clearTimeout(typing);
  showChips();
  update();
});
$('process').addEventListener('change', showSpace);
$('time-details').addEventListener('toggle', () => { if ($('time-details').open) showTimeTable(); });
const turn = (to) => { page = to; showRows(); };
$('first').addEventListener('click', () => turn(0));
$('previous').addEventListener('click', () => turn(page - 1));
$('next').addEventListener('click', () => turn(page + 1));
$('last').addEventListener('click', () => turn(Infinity));
$('page').addEventListener('change', () => turn(Math.floor(+$('page').value || 1) - 1));
let resizing = 0, wide = innerWidth;
addEventListener('resize', () => {
  if (innerWidth === wide) return;
  wide = innerWidth;
  clearTimeout(resizing);
  resizing = setTimeout(() => { drawTimeline(); showSpace(); }, 100);
});
dark.addEventListener('change', () => { showRamp(); drawTimeline(); showSpace(); });

begin();
showRamp();
showLegend();
showColumns();
update();
document.body.dataset.ready = String(view.length);
})();
