'use strict';
(() => {
const $ = (id) => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const TOP = 40;
// Boxes narrower than this many pixels are left out: they could not be seen or hit.
const NARROWEST = 1.5;
const KINDS = ['program', 'allocator', 'libraries', 'kernel'];

const state = { type: data.shown, group: '', order: 'callers', width: 'both', words: [], sort: 'own' };
let tree, zoom, focus, sums;

// ---- Texts.

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

function scaled(value, step, units) {
  let unit = 0;
  while (value >= step * 0.99995 && unit + 1 < units.length) { value /= step; unit++; }
  return (unit === 0 && Number.isInteger(value) ? grouped(value) : value.toFixed(value < 10 ? 2 : 1)) + ' ' + units[unit];
}

function amount(value) {
  const unit = data.types[state.type].unit;
  if (value < 0) return '-' + amount(-value);
  if (unit === 'bytes') return scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']);
  if (unit === 'nanoseconds') return scaled(value, 1000, ['ns', '\u00b5s', 'ms', 's']);
  return grouped(value) + (unit === 'count' ? '' : ' ' + unit);
}

const change = (value) => (value > 0 ? '+' : '') + amount(value);
const share = (part, whole) => whole ? (part * 100 / whole).toFixed(1) + ' %' : '';
const text = (position) => position < 0 ? '' : data.texts[position];
const nameOf = (frame) => frame < 0 ? data.operations[-frame - 2] : text(data.frames[frame][0]);

// ---- The tree. A node has the sums of two sides: before and after; of one profile, what is negative and what is not.

function sides(values) {
  if (data.diff) return [values[0][state.type], values[1][state.type]];
  const value = values[0][state.type];
  return value < 0 ? [-value, 0] : [0, value];
}

function node(frame, parent) {
  return { frame, parent, children: new Map(), before: 0, after: 0, own: 0, depth: parent ? parent.depth + 1 : 0 };
}

function weight(n) {
  if (!data.diff || state.width === 'both') return n.before + n.after;
  return state.width === 'before' ? n.before : n.after;
}

function build() {
  tree = node(-1, null);
  for (const [path, operation, values] of data.stacks) {
    const [before, after] = sides(values);
    if (!before && !after) continue;
    const frames = state.order === 'callees' ? [...path].reverse() : path;
    let at = tree;
    at.before += before;
    at.after += after;
    const step = (frame) => {
      let next = at.children.get(frame);
      if (!next) at.children.set(frame, next = node(frame, at));
      at = next;
      at.before += before;
      at.after += after;
    };
    // Operations are frames of negative numbers, from -2 on.
    if (state.group && operation >= 0) step(-operation - 2);
    for (const frame of frames) step(frame);
    at.own += before + after;
  }
  zoom = focus = tree;
}

const value = (n) => data.diff ? n.after : n.after - n.before;
const labelOf = (n) => n === tree ? 'all' : nameOf(n.frame);
const signed = () => data.diff || tree.before > 0;

function color(n) {
  if (signed()) {
    const most = Math.max(n.before, n.after);
    const part = most ? (n.after - n.before) / most : 0;
    const strength = Math.round(Math.min(1, Math.abs(part)) * 100);
    if (!strength) return 'var(--same)';
    return 'color-mix(in srgb, var(--' + (part > 0 ? 'grew' : 'shrank') + ') ' + strength + '%, var(--same))';
  }
  if (n.frame < 0) return 'var(--same)';
  return 'var(--f' + data.frames[n.frame][3] + ')';
}

function matches(frame) {
  if (!state.words.length || frame === -1) return false;
  const row = frame < 0 ? [] : data.frames[frame];
  const where = (nameOf(frame) + ' ' + (frame < 0 ? '' : text(row[1]) + ' ' + text(row[2]))).toLowerCase();
  return state.words.every((word) => where.includes(word));
}

// ---- The graph.

const boxes = new Map();

function children(n) {
  return [...n.children.values()].sort((a, b) => weight(b) - weight(a));
}

function draw() {
  const graph = $('graph');
  const pixels = graph.clientWidth || 800;
  const row = matchMedia('(max-width: 46rem)').matches ? 1.7 : 1.35;
  boxes.clear();
  const drawn = [];
  const place = (n, left, wide, level, above) => {
    const name = labelOf(n);
    const thin = wide * pixels / 100 < 24;
    const box = el('div', {
      role: 'treeitem', 'aria-level': level + 1, tabindex: n === focus ? 0 : -1, 'aria-label': spoken(n),
      class: 'box' + (thin ? ' thin' : '') + (above ? ' above' : '') + (matches(n.frame) ? ' match' : ''),
      style: 'left:' + left + '%;width:' + wide + '%;top:' + (level * row) + 'rem;background:' + color(n),
      onclick: () => zoomTo(n), onmouseenter: () => detail(n), onfocus: () => { focus = n; detail(n); },
    }, thin ? '' : name);
    boxes.set(n, box);
    drawn.push(box);
  };
  const up = [];
  for (let n = zoom.parent; n; n = n.parent) up.unshift(n);
  up.forEach((n, level) => place(n, 0, 100, level, true));
  let deepest = up.length;
  const walk = (n, left, wide, level) => {
    place(n, left, wide, level, false);
    deepest = Math.max(deepest, level);
    const whole = weight(n);
    let at = left;
    for (const child of children(n)) {
      const size = whole ? wide * weight(child) / whole : 0;
      if (size * pixels / 100 < NARROWEST) break;
      walk(child, at, size, level + 1);
      at += size;
    }
  };
  walk(zoom, 0, 100, up.length);
  if (!boxes.has(focus)) { focus = zoom; boxes.get(zoom).tabIndex = 0; }
  graph.style.height = ((deepest + 1) * row) + 'rem';
  graph.classList.toggle('searching', state.words.length > 0);
  graph.replaceChildren(...drawn);
  $('out').disabled = zoom === tree;
}

function spoken(n) {
  const parts = [labelOf(n), amount(value(n)), share(weight(n), weight(tree))];
  if (data.diff) parts.push(change(n.after - n.before));
  return parts.filter(Boolean).join(', ');
}

function zoomTo(n) {
  const had = $('graph').contains(document.activeElement);
  zoom = focus = n;
  draw();
  if (had) boxes.get(n).focus();
  detail(n);
}

function detail(n) {
  const row = n.frame < 0 ? null : data.frames[n.frame];
  const where = row ? [text(row[2]), text(row[1]), KINDS[row[3]]].filter(Boolean).join(' \u00b7 ') : '';
  const numbers = [];
  if (data.diff) {
    numbers.push(amount(n.before) + ' before, ' + amount(n.after) + ' after: ');
    numbers.push(el('span', { class: n.after > n.before ? 'grew' : 'shrank' }, change(n.after - n.before)));
  } else {
    numbers.push(amount(value(n)) + ', ' + share(weight(n), weight(tree)) + ' of all');
    if (n.own && n !== tree) numbers.push('; itself ' + amount(n.own));
  }
  $('detail').replaceChildren(el('strong', null, labelOf(n)), ' ', ...numbers,
    el('span', { class: 'sub' }, where || '\u00a0'));
}

function keys(event) {
  const siblings = focus.parent ? children(focus.parent).filter((n) => boxes.has(n)) : [focus];
  const at = siblings.indexOf(focus);
  const moves = {
    ArrowDown: () => children(focus).find((n) => boxes.has(n)), ArrowUp: () => focus.parent,
    ArrowRight: () => siblings[at + 1], ArrowLeft: () => siblings[at - 1],
    Home: () => siblings[0], End: () => siblings[siblings.length - 1],
  };
  if (moves[event.key]) {
    const next = moves[event.key]();
    event.preventDefault();
    if (!next) return;
    if (!boxes.has(next)) return;
    boxes.get(focus).tabIndex = -1;
    boxes.get(next).tabIndex = 0;
    boxes.get(next).focus();
  } else if (event.key === 'Enter' || event.key === ' ') {
    event.preventDefault();
    zoomTo(focus);
  } else if (event.key === 'Escape') {
    event.preventDefault();
    zoomTo(zoom.parent || tree);
  }
}

// ---- The tables.

function countFunctions() {
  sums = new Map();
  for (const [path, , values] of data.stacks) {
    const [before, after] = sides(values);
    if (!before && !after) continue;
    new Set(path).forEach((frame) => {
      const sum = sums.get(frame) || { frame, before: 0, after: 0, own: 0 };
      sum.before += before;
      sum.after += after;
      if (frame === path[path.length - 1]) sum.own += after - (data.diff ? 0 : before);
      sums.set(frame, sum);
    });
  }
}

function showFunctions() {
  const columns = data.diff
    ? [['change', 'Change', (s) => s.after - s.before, change], ['before', 'Before', (s) => s.before, amount],
       ['after', 'After', (s) => s.after, amount]]
    : [['own', 'Itself', (s) => s.own, amount], ['total', 'With callees', (s) => s.after - s.before, amount]];
  if (!columns.some(([key]) => key === state.sort)) state.sort = columns[0][0];
  const by = columns.find(([key]) => key === state.sort)[2];
  const rows = [...sums.values()].filter((s) => !state.words.length || matches(s.frame));
  const size = data.diff && state.sort === 'change' ? (s) => Math.abs(by(s)) : by;
  rows.sort((a, b) => size(b) - size(a) || nameOf(a.frame).localeCompare(nameOf(b.frame)));
  const head = columns.map(([key, name]) => el('th', { scope: 'col', class: 'number', 'aria-sort': key === state.sort ? 'descending' : 'none' },
    el('button', { type: 'button', class: 'sort', id: 'by-' + key, onclick: () => { state.sort = key; showFunctions(); $('by-' + key).focus(); } },
      name + (key === state.sort ? ' \u2193' : ''))));
  const body = rows.slice(0, TOP).map((s) => {
    const [, object, place, kind] = data.frames[s.frame];
    const numbers = columns.map(([key, , of, as]) => {
      const tone = key === 'change' ? (of(s) > 0 ? ' grew' : of(s) < 0 ? ' shrank' : '') : '';
      return el('td', { class: 'number' + tone }, as(of(s)));
    });
    const swatch = data.diff ? '' : el('span', { class: 'swatch', 'aria-hidden': 'true', style: 'background:var(--f' + kind + ')' });
    const find = el('button', { type: 'button', class: 'link', onclick: () => search(nameOf(s.frame)) },
      swatch, nameOf(s.frame));
    return el('tr', null, ...numbers, el('td', null, find,
      el('span', { class: 'sub' }, [text(place), text(object)].filter(Boolean).join(' \u00b7 '))));
  });
  $('functions').replaceChildren(el('thead', null, el('tr', null, ...head, el('th', { scope: 'col' }, 'Function'))),
    el('tbody', null, ...body));
  $('functions-note').textContent = rows.length > TOP ? 'The first ' + TOP + ' of ' + grouped(rows.length) + ' functions.' : '';
}

function showOperations() {
  $('operations-section').hidden = !data.operations.length;
  if (!data.operations.length) return;
  const totals = data.operations.map((name) => ({ name, before: 0, after: 0 }));
  for (const [, operation, values] of data.stacks) {
    if (operation < 0) continue;
    const [before, after] = sides(values);
    totals[operation].before += before;
    totals[operation].after += after;
  }
  totals.sort((a, b) => b.after - a.after);
  const whole = tree.after - (data.diff ? 0 : tree.before);
  $('operations').replaceChildren(el('tbody', null, ...totals.map((t) => el('tr', null,
    el('td', { class: 'number' }, amount(t.after)),
    el('td', { class: 'number' }, data.diff ? change(t.after - t.before) : share(t.after, whole)),
    el('td', null, t.name, el('div', { class: 'share', 'aria-hidden': 'true', style: 'width:' + (whole ? t.after * 100 / whole : 0) + '%' }))))));
}

// ---- What the user chooses.

function search(words) {
  $('search').value = words;
  found();
  draw();
  showFunctions();
}

/** Sums what matches: the outermost match on each stack. */
function found() {
  state.words = $('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!state.words.length) { $('found').textContent = ''; return; }
  let sum = 0;
  const walk = (n) => {
    if (matches(n.frame)) { sum += weight(n); return; }
    n.children.forEach(walk);
  };
  walk(tree);
  $('found').textContent = sum ? share(sum, weight(tree)) + ' match' : 'no match';
}

function lead() {
  const type = data.types[state.type];
  let line = type.label + ': ';
  if (data.diff) {
    line += amount(tree.before) + ' before, ' + amount(tree.after) + ' after: ' + change(tree.after - tree.before);
  } else {
    line += amount(value(tree));
    if (data.whole && state.type === data.shown) line += ', ' + share(value(tree), data.whole) + ' of ' + amount(data.whole);
  }
  if (data.left_out) line += '. The ' + grouped(data.left_out) + ' smallest stacks are one box.';
  $('lead').textContent = line;
}

function legend() {
  const items = signed()
    ? [el('li', null, el('span', { class: 'scale', 'aria-hidden': 'true' }), ' blue: shrank, red: grew')]
    : KINDS.map((name, kind) => el('li', null,
      el('span', { class: 'swatch', 'aria-hidden': 'true', style: 'background:var(--f' + kind + ')' }), name));
  $('legend').replaceChildren(...items);
}

function update() {
  build();
  countFunctions();
  found();
  lead();
  legend();
  draw();
  detail(tree);
  showOperations();
  showFunctions();
}

$('type').append(...data.types.map((type, at) => el('option', { value: String(at) }, type.label)));
$('type').value = String(data.shown);
$('group-label').hidden = !data.operations.length;
$('width-label').hidden = !data.diff;
for (const name of ['type', 'group', 'order', 'width']) {
  $(name).addEventListener('change', () => {
    state[name] = name === 'type' ? +$(name).value : $(name).value;
    update();
  });
}
let typing = 0;
$('search').addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(() => { found(); draw(); showFunctions(); }, 120);
});
$('controls').addEventListener('submit', (event) => event.preventDefault());
$('out').addEventListener('click', () => zoomTo(zoom.parent || tree));
$('graph').addEventListener('keydown', keys);
addEventListener('keydown', (event) => {
  if (event.key === '/' && !event.ctrlKey && !event.metaKey && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    $('search').focus();
  }
});
let resizing = 0, wide = innerWidth;
addEventListener('resize', () => {
  if (innerWidth === wide) return;
  wide = innerWidth;
  clearTimeout(resizing);
  resizing = setTimeout(draw, 100);
});
update();
document.body.dataset.ready = String(boxes.size);
})();
