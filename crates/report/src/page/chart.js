'use strict';
// Draws each chart of the page with uPlot: axes, zoom, hover and legend are uPlot's; points, whiskers and bars are
// drawn here, because their shapes differ without colour.
(() => {
const dark = matchMedia('(prefers-color-scheme: dark)');
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
const shapes = {
  circle: (p, x, y, r) => p.arc(x, y, r, 0, 7),
  square: (p, x, y, r) => p.rect(x - r, y - r, 2 * r, 2 * r),
  diamond: (p, x, y, r) => {
    p.moveTo(x, y - 1.3 * r); p.lineTo(x + 1.3 * r, y); p.lineTo(x, y + 1.3 * r); p.lineTo(x - 1.3 * r, y);
  },
  up: (p, x, y, r) => { p.moveTo(x, y - 1.2 * r); p.lineTo(x + 1.2 * r, y + r); p.lineTo(x - 1.2 * r, y + r); },
  down: (p, x, y, r) => { p.moveTo(x, y + 1.2 * r); p.lineTo(x + 1.2 * r, y - r); p.lineTo(x - 1.2 * r, y - r); },
  right: (p, x, y, r) => { p.moveTo(x + 1.2 * r, y); p.lineTo(x - r, y + 1.2 * r); p.lineTo(x - r, y - 1.2 * r); },
  bar: (p, x, y, r) => p.rect(x - r / 2, y - 1.4 * r, r, 2.8 * r),
  plate: (p, x, y, r) => p.rect(x - 1.4 * r, y - r / 2, 2.8 * r, r),
};

// Where a series lies beside its category, in CSS pixels; lines lie on their places.
function aside(u, data, k) {
  if (data.kind === 'line') return [0, 0];
  const shown = data.rows.map((_, i) => i).filter((i) => u.series[i + 1].show);
  const room = 0.8 * Math.abs(u.valToPos(1, 'x') - u.valToPos(0, 'x'));
  const step = Math.min(data.kind === 'bar' ? 60 : 18, room / Math.max(1, shown.length));
  return [(shown.indexOf(k) - (shown.length - 1) / 2) * step, step];
}

function drawSeries(u, data, k) {
  const row = data.rows[k], c = u.ctx, ratio = devicePixelRatio || 1;
  if (!u.series[k + 1].show) return;
  const [move, step] = aside(u, data, k);
  const colour = row.colours[dark.matches ? 1 : 0];
  const y = (value) => u.valToPos(value, 'y', true);
  c.save();
  c.beginPath();
  c.rect(u.bbox.left - 8 * ratio, u.bbox.top - 8 * ratio, u.bbox.width + 16 * ratio, u.bbox.height + 16 * ratio);
  c.clip();
  c.strokeStyle = c.fillStyle = colour;
  c.lineWidth = 1.5 * ratio;
  c.setLineDash([]);
  data.xs.forEach((at, i) => {
    if (row.mid[i] === null) return;
    const x = u.valToPos(at, 'x', true) + move * ratio;
    const r = (row.bold ? 5 : 4) * ratio;
    c.beginPath();
    if (data.kind === 'bar') {
      const wide = Math.max(2, step * 0.8) * ratio, zero = y(0);
      c.rect(x - wide / 2, Math.min(zero, y(row.mid[i])), wide, Math.abs(zero - y(row.mid[i])));
      if (row.hollow) c.stroke(); else c.fill();
      if (row.bold && wide > 20 * ratio) {
        c.font = 'bold ' + 12 * ratio + 'px system-ui, sans-serif';
        c.textAlign = 'center';
        c.fillText(row.texts[i].split(' [')[0], x, y(row.mid[i]) - 5 * ratio);
      }
      c.strokeStyle = ink('k-text');
      c.beginPath();
    } else {
      shapes[row.marker](c, x, y(row.mid[i]), r);
      c.closePath();
      c.fillStyle = row.hollow ? ink('k-back') : colour;
      c.fill();
      c.stroke();
      c.fillStyle = colour;
      c.beginPath();
    }
    if (row.low[i] !== null && row.high[i] > row.low[i]) {
      c.moveTo(x, y(row.low[i]));
      c.lineTo(x, y(row.high[i]));
      c.stroke();
    }
    c.strokeStyle = colour;
  });
  c.restore();
}

function drawMarks(u, data) {
  const c = u.ctx, ratio = devicePixelRatio || 1;
  c.save();
  c.strokeStyle = ink('k-mark');
  c.lineWidth = 1.5 * ratio;
  c.setLineDash([5 * ratio, 3 * ratio]);
  const within = (at, from, length) => at >= from && at <= from + length;
  for (const value of data.marks) {
    const y = u.valToPos(value, 'y', true);
    if (!within(y, u.bbox.top, u.bbox.height)) continue;
    c.beginPath(); c.moveTo(u.bbox.left, y); c.lineTo(u.bbox.left + u.bbox.width, y); c.stroke();
  }
  for (const value of data.places) {
    const x = u.valToPos(value, 'x', true);
    if (!within(x, u.bbox.left, u.bbox.width)) continue;
    c.beginPath(); c.moveTo(x, u.bbox.top); c.lineTo(x, u.bbox.top + u.bbox.height); c.stroke();
  }
  c.restore();
}

// Three digits, and the prefix of a size or a time.
function short(value, unit) {
  const steps = {
    B: [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 1024], ['B', 1]],
    KiB: [['GiB', 2 ** 20], ['MiB', 1024], ['KiB', 1]],
    MiB: [['GiB', 1024], ['MiB', 1]], ns: [['s', 1e9], ['ms', 1e6], ['\u00b5s', 1e3], ['ns', 1]],
    us: [['s', 1e6], ['ms', 1e3], ['\u00b5s', 1], ['ns', 1e-3]], ms: [['s', 1e3], ['ms', 1], ['\u00b5s', 1e-3]],
  }[unit];
  if (value === 0) return '0';
  const [name, scale] = (steps || []).find(([, scale]) => Math.abs(value) >= scale) || (steps ? steps.at(-1) : ['', 1]);
  return Number((value / scale).toPrecision(3)).toLocaleString('en') + (name ? ' ' + name : '');
}

function chart(figure) {
  const host = figure.querySelector('.plot'), data = JSON.parse(figure.querySelector('.chart-data').textContent);
  const named = data.names !== null;
  const last = data.xs.length - 1;
  const values = data.rows.flatMap((row) => [...row.mid, ...row.low, ...row.high]).filter((value) => value !== null);
  const fit = () => {
    const width = host.clientWidth;
    return { width, height: width < 500 ? 250 : 320 };
  };
  const decades = (at) => at.at(-1) / at[0] > 1e4 ? /^1e/ : at.at(-1) / at[0] > 300 ? /^[13]e/ : /^[125]e/;
  // Labels that would touch are left out, from the left.
  const apart = (u, at) => {
    let free = -Infinity;
    return at.map((v) => {
      const x = u.valToPos(v, 'x'), half = short(v, data.xUnit).length * 4;
      if (x - half < free) return null;
      free = x + half + 6;
      return v;
    });
  };
  const binary = /^([KMG]i)?B$/.test(data.yUnit);
  const yRange = (u, low, high) => {
    const all = values.concat(data.marks).filter((value) => !data.yLog || value > 0);
    low = Math.min(...all); high = Math.max(...all);
    if (data.yLog) return [low / 1.3, high * 1.3];
    const room = (high - Math.min(0, low)) * 0.08 || 1;
    return [low < 0 ? low - room : 0, high + room];
  };
  const xRange = (u, low, high) => named && last === 0 ? [-0.5, 0.5] : named ? [low - 0.5, high + 0.5]
    : data.xLog ? [low / 1.15, high * 1.15] : [low, high];
  const grid = { stroke: () => ink('k-grid'), width: 1 };
  const axis = { stroke: () => ink('k-muted'), grid, ticks: grid, font: '12px system-ui, sans-serif' };
  const widest = (texts) => Math.max(...texts.map((one) => one.length));
  let crowded = named && widest(data.names) * 7 * (last + 1) > fit().width - 60;
  const options = {
    ...fit(),
    scales: {
      x: { time: false, distr: data.xLog && !named ? 3 : 1, log: 2, range: xRange },
      y: { distr: data.yLog ? 3 : 1, log: binary ? 2 : 10, range: yRange },
    },
    series: [
      { label: data.xLabel || 'at', value: (u, v, s, i) => i === null ? '' : data.texts[i] },
      ...data.rows.map((row, k) => ({
        label: row.name,
        stroke: () => row.colours[dark.matches ? 1 : 0], width: row.bold ? 3 : 2, dash: row.dash,
        paths: data.kind === 'line' ? undefined : () => null,
        spanGaps: true, points: { show: false },
        value: (u, v, s, i) => i === null ? '' : row.texts[i],
      })),
    ],
    axes: [
      {
        ...axis, rotate: crowded ? -60 : 0, size: crowded ? Math.min(130, 24 + widest(data.names) * 6) : 40,
        splits: named ? () => data.xs : data.xLog ? () => data.xs : undefined,
        filter: named || !data.xLog ? undefined : apart,
        values: (u, at) => at.map((v) => v === null ? '' : named ? data.names[v] : short(v, data.xUnit)),
      },
      {
        ...axis, size: 76, values: (u, at) => at.map((v) => v === null ? '' : short(v, data.yUnit)),
        filter: !data.yLog ? undefined : (u, at) => at.map((v, i) => (
          binary ? i % Math.ceil(at.length / 8) === 0 : decades(at).test(v.toExponential())) ? v : null),
      },
    ],
    cursor: { points: { show: data.kind === 'line' }, y: false },
    hooks: {
      drawSeries: [(u, s) => { if (s > 0) drawSeries(u, data, s - 1); }],
      draw: [(u) => drawMarks(u, data)],
      // Without a pointer the legend shows the last position.
      setLegend: [(u) => {
        if (u.legend.idx === null && last >= 0) u.setLegend({ idx: last, idxs: u.series.map(() => last) }, false);
      }],
      ready: [(u) => u.setLegend({ idx: last, idxs: u.series.map(() => last) })],
    },
  };
  const clean = (list, log) => list.map((value) => log && value !== null && value <= 0 ? null : value);
  const plot = new uPlot(options, [data.xs, ...data.rows.map((row) => clean(row.mid, data.yLog))], host);
  plot.ctx.canvas.setAttribute('role', 'img');
  plot.ctx.canvas.setAttribute('aria-label', data.description);
  // Series can be turned off and on by keys too.
  host.querySelectorAll('.u-series').forEach((line, k) => {
    const head = line.querySelector('th');
    if (k === 0) {
      // A chart of one position without a name has nothing to say of it.
      if (!data.texts.some(Boolean)) line.style.display = 'none';
      return;
    }
    head.tabIndex = 0;
    head.setAttribute('role', 'switch');
    const state = () => head.setAttribute('aria-checked', String(plot.series[k].show));
    state();
    head.addEventListener('click', () => setTimeout(state));
    head.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      plot.setSeries(k, { show: !plot.series[k].show });
      state();
    });
  });
  const resize = () => { if (host.clientWidth && host.clientWidth !== plot.width) plot.setSize(fit()); };
  return { plot, resize };
}

let charts = [];
function drawAll() {
  charts.forEach(({ plot }) => plot.destroy());
  charts = [...document.querySelectorAll('figure.chart')].map(chart);
}
let resizing = 0;
addEventListener('resize', () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => charts.forEach(({ resize }) => resize()), 100);
});
dark.addEventListener('change', drawAll);
drawAll();
})();
