'use strict';
// What scripts add to the page: menus, filters, hover, details, sorting, copies, downloads. The controls are
// the state; the address's #hash holds what differs from how the page opens. Text is only ever set as text.
(async () => {
  if (!('DecompressionStream' in window)) return; // an old browser keeps the page without scripts
  const one = (what, where = document) => where.querySelector(what);
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const make = (tag, text, props = {}) => Object.assign(document.createElement(tag), { textContent: text ?? '' }, props);
  const unpack = id => {
    const bytes = Uint8Array.from(atob(document.getElementById('p-' + id).textContent), c => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
  };
  const data = JSON.parse(await unpack('data')), drawn = one('#live');
  if (drawn) document.head.append(make('script', await unpack('libraries')));
  const cases = data.cases || [], runs = data.runs || [];
  const menu = name => one(`#menus select[name=${name}]`)?.value;
  const boxes = one('#all'), find = one('[name=find]');
  let views = {}, open = null, sorted = {}, based, wide = 0;

  // --- numbers
  const digits = v => v == null ? '' : Math.abs(v) >= 1e5 ? v.toFixed(0) : Math.abs(v) >= 10 ? v.toFixed(2) : String(+v.toPrecision(4));
  const percent = v => v == null ? '' : (100 * v).toFixed(1) + ' %';
  const shown = (v, q) => v == null ? '' : q.form.includes('%') ? percent(v) : q.how === 'speedup' ? v.toFixed(2) : digits(v);
  const baseOf = c => { const b = data.bases.get(c.s + ' ' + menu('base')); return b && b.m[c.unit] ? b : null; };
  // What a throughput is multiplied by to become the quantity; null where there is no base.
  const factor = (c, q) => {
    if (q.how === 'total') return 1;
    if (q.how === 'device') return 1 / c.n;
    const b = baseOf(c);
    return b ? (q.how === 'speedup' ? 1 : b.n / c.n) / b.m[c.unit][0] : null;
  };
  const point = (c, q) => { // [value, low, high], as the report computes them
    const m = c.m[q.of || c.unit], f = factor(c, q);
    if (!m || f === null) return null;
    if (q.how === 'total' || q.how === 'device') return m.map(v => v === null ? null : v * f);
    const b = baseOf(c), ends = b.m[c.unit], known = c !== b && m[1] !== null && ends[1] !== null;
    return [m[0] * f, known ? m[1] * f * ends[0] / ends[2] : null, known ? m[2] * f * ends[0] / ends[1] : null];
  };

  // --- filters
  const keys = all('#filters fieldset'), lines = all('tr[data-c]').map(tr => [tr, cases[tr.dataset.c]]);
  const choice = () => {
    const on = keys.map(k => [k.dataset.key, new Set(all('input:checked', k).map(b => b.value))]), part = (find?.value || '').trim().toLowerCase();
    return c => on.every(([key, values]) => values.has(c.keys[key])) && c.name.toLowerCase().includes(part);
  };
  const chosenSeries = () => { // those that are drawn: visible, not unticked, and not too many unless asked for
    const there = [...new Set(cases.filter(c => c.visible).map(c => c.s))].sort((a, b) => a - b), may = boxes && !boxes.checked ? there.slice(0, data.most) : there;
    all('#legend li').forEach(li => li.hidden = !may.includes(+li.dataset.s));
    all('.all').forEach(label => label.hidden = there.length <= data.most);
    return new Set(may.filter(s => one(`#legend input[value="${s}"]`)?.checked ?? true));
  };
  const filter = () => {
    const passes = choice();
    cases.forEach(c => c.visible = passes(c));
    lines.forEach(([tr, c]) => { if (tr.hidden === c.visible) tr.hidden = !c.visible; });
    const some = cases.filter(c => c.visible).length, few = runs.filter(r => cases[r.c].visible).length;
    if (one('#shown')) one('#shown').textContent = `${some} of ${cases.length} cases` + (runs.length ? `, ${few} of ${runs.length} runs` : '') + ' shown';
  };

  // --- the figure
  const scalingData = (q, x, y, series) => {
    const place = [...series], most = Math.max(...cases.map(c => c.n)), least = Math.min(...cases.map(c => c.n));
    const out = { ideal: [], runs: [], hollow: [], without: [], intervals: [], cases: [] };
    // Beside a sloping line a mark keeps its place; else the series at one device count stand side by side.
    const width = Math.max(wide - 90, 200), counts = [...new Set(cases.map(c => c.n))].sort((a, b) => a - b);
    const scale = n => x === 'log' ? Math.log2(n) * width / Math.log2(most / least * 1.96) : n * width / (most * 1.08);
    const gap = Math.min(width / 3, ...counts.slice(1).map((n, i) => scale(n) - scale(counts[i])));
    const room = q.ideal === 'line' ? 0 : Math.min(0.7 * gap / Math.max(place.length, 1), 16), beside = room ? Math.min(room / 2, 8) : 8;
    const moved = (n, px) => x === 'log' ? n * 2 ** (px / scale(2)) : n + px / scale(1);
    const at = (c, px) => moved(c.n, (place.indexOf(c.s) - (place.length - 1) / 2) * room + px);
    cases.forEach((c, i) => {
      if (!c.visible || !series.has(c.s)) return;
      const p = point(c, q);
      if (!p || (y === 'log' && !(p[0] > 0))) return;
      out.cases.push({ s: c.s, x: at(c, 0), y: p[0], c: i, name: c.name });
      if (p[1] !== null) out.intervals.push({ s: c.s, x: at(c, 0), low: p[1], high: p[2] });
    });
    runs.forEach((r, i) => {
      const c = cases[r.c], f = factor(c, q), v = r.m[q.of || c.unit];
      if (!c.visible || !series.has(c.s)) return;
      const dot = { s: c.s, x: at(c, beside), r: i, y: v == null || f === null ? null : v * f };
      if (dot.y === null) { if (!r.ok) out.without.push(dot); } else (r.ok ? out.runs : out.hollow).push(dot);
    });
    for (const s of q.ideal ? place : []) {
      const mine = cases.filter(c => c.s === s && c.visible), b = mine.length && baseOf(mine[0]);
      if (!b || new Set(mine.map(c => c.n)).size < 2) continue;
      const start = x === 'linear' && y === 'linear' ? 0 : least, p = point(b, q)?.[0];
      for (let i = 0; p != null && i <= 40; i++) {
        const n = start + (most - start) * i / 40;
        out.ideal.push({ s, x: n, y: q.ideal === 'line' ? p * n / b.n : p });
      }
    }
    return out;
  };
  const scalingSpec = (q, x, y) => {
    const spec = structuredClone(data.specs.scaling), most = Math.max(...cases.map(c => c.n)), least = Math.min(...cases.map(c => c.n));
    Object.assign(spec.encoding.x.scale, x === 'log' ? { type: 'log', base: 2, domain: [least / 1.4, most * 1.4] } : { type: 'linear', domain: [0, most * 1.08] });
    Object.assign(spec.encoding.y.axis, { title: q.axis, format: q.form });
    Object.assign(spec.encoding.y.scale, y === 'log' ? { type: 'log', base: 2 } : { type: 'linear', zero: q.zero });
    return spec;
  };
  const draw = async () => {
    if (!drawn) return;
    if (data.kind === 'compare') return drawRatios();
    const q = data.quantities[menu('quantity')], x = menu('x'), y = menu('y'), series = chosenSeries();
    const sets = scalingData(q, x, y, series);
    const lacks = cases.filter(c => c.visible && series.has(c.s) && !point(c, q)).length;
    const based = q.how === 'speedup' || q.how === 'efficiency';
    one('#told').textContent = !sets.cases.length && !sets.runs.length && !sets.hollow.length
      ? 'Nothing that is chosen has this quantity: choose another quantity or base, or fewer filters.'
      : lacks ? `${lacks} of the chosen cases ${based ? `have no ${q.label} over ${menu('base') || 'a base'}` : 'do not have this quantity'} and are not drawn.` : '';
    await show('live', `${q.label} ${x} ${y}`, () => scalingSpec(q, x, y), sets,
      `${q.axis} against devices: ${sets.cases.length} cases of ${series.size} series. The tables below have every figure.`);
  };
  const drawRatios = () => {
    const sets = { cases: [], intervals: [] };
    cases.forEach((c, i) => {
      if (!c.visible || c.ratio == null) return;
      sets.cases.push({ label: c.label, x: c.ratio, outcome: c.outcome, c: i });
      if (c.low != null) sets.intervals.push({ label: c.label, low: c.low, high: c.high, outcome: c.outcome });
    });
    one('#told').textContent = sets.cases.length ? '' : 'None of the chosen cases has a ratio.';
    const height = 24 * sets.cases.length + 60;
    return show('live', `ratios ${height}`, () => ({ ...data.specs.ratios, height }), sets, `B / A of ${sets.cases.length} cases. The table below has every figure.`);
  };
  // Draw anew what has another name, or data for a layer that is not there; else only change the data. A layer that a filter
  // empties stays (to compile takes longer than all else); of that Vega would warn, since nothing has no extent.
  const show = async (id, name, spec, sets, label) => {
    let view = views[id], used = Object.keys(sets).filter(set => sets[set].length);
    if (view?.name !== name || !used.length || used.some(set => !view.layers.includes(set))) {
      view?.made.finalize();
      delete views[id];
      one('#' + id).replaceChildren();
      if (!used.length) return;
      const whole = { ...spec() }, filled = d => d?.name && { ...d, values: sets[d.name] };
      whole.layer = whole.layer.filter(l => !l.data?.name || used.includes(l.data.name)).map(l => l.data?.name ? { ...l, data: filled(l.data) } : l);
      if (whole.data) whole.data = filled(whole.data);
      const made = await vegaEmbed('#' + id, whole, {
        actions: false, ast: true, renderer: 'svg', defaultStyle: false,
        tooltip: (_, event, __, value) => tip(event, value), loader: { load: () => Promise.reject(new Error('offline')) },
      });
      view = views[id] = { name, made, layers: used };
      made.view.addEventListener('click', (_, item) => pick(item?.datum));
    }
    view.made.view.logLevel(used.length < view.layers.length ? vega.Error : vega.Warn);
    view.layers.forEach(set => view.made.view.data(set, sets[set]));
    one('#' + id).setAttribute('role', 'img');
    one('#' + id).setAttribute('aria-label', label);
    await view.made.view.runAsync();
    one(`#${id} svg`)?.setAttribute('aria-hidden', 'true');
  };

  // --- hover and click
  const said = datum => {
    if (datum?.r !== undefined) {
      const r = runs[datum.r], c = cases[r.c], q = data.quantities[menu('quantity')], p = point(c, q);
      const value = datum.y == null ? 'no number' : shown(datum.y, q);
      const rows = [[q.label, value + (r.ok ? '' : ' (does not count)')]];
      if (p) rows.push(['median of its case', shown(p[0], q)]);
      if (p && p[1] !== null) rows.push(['interval', `${shown(p[1], q)}–${shown(p[2], q)}`]);
      return [r.name, [...rows, ...r.told.filter(([name]) => data.hover.includes(name))]];
    }
    if (datum?.c === undefined) return null;
    const c = cases[datum.c];
    if (data.kind === 'compare') return [c.name, c.told];
    const q = data.quantities[menu('quantity')], p = point(c, q);
    return [c.name, [[q.label, shown(p[0], q) + ' (median)'], ...(p[1] !== null ? [['interval', `${shown(p[1], q)}–${shown(p[2], q)}`]] : []), ...c.told]];
  };
  const list = (dl, rows) => dl.replaceChildren(...rows.map(([name, text]) => { const d = make('div'); d.append(make('dt', name), make('dd', text)); return d; }));
  const tip = (event, datum) => {
    one('#tip')?.remove();
    const told = said(datum);
    if (!told) return;
    const box = make('div', '', { id: 'tip' }), dl = make('dl');
    box.append(make('b', told[0]), dl);
    dl.append(...told[1].flatMap(([name, text]) => [make('dt', name), make('dd', text)]));
    document.body.append(box);
    box.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8)) + 'px';
    box.style.top = (event.clientY + 18 + box.offsetHeight > innerHeight ? Math.max(4, event.clientY - box.offsetHeight - 12) : event.clientY + 18) + 'px';
  };
  const toRow = what => {
    const tr = one(what);
    if (!tr) return;
    all('tr.here').forEach(e => e.classList.remove('here'));
    Object.assign(tr, { className: `${tr.className} here`, tabIndex: -1 });
    tr.scrollIntoView({ block: 'center' });
    tr.focus({ preventScroll: true });
  };
  const pick = datum => datum?.r !== undefined ? details(datum.r, true) : datum?.c !== undefined && toRow(`#t-cases tr[data-c="${datum.c}"]`);
  const details = async (number, move) => {
    const r = runs[number], t = r.trace, box = one('#detail');
    open = number;
    box.hidden = false;
    one('#h-detail').textContent = r.name;
    const rows = Object.entries(data.quantities).filter(([, q]) => q.how === 'total' && r.m[q.of] != null).map(([, q]) => [q.label, shown(r.m[q.of], q)]);
    if (t?.slowest) rows.push(['slowest over the window', t.slowest]);
    list(one('dl', box), [...rows.filter(([name]) => !r.told.some(([other]) => other === name)), ...r.told]);
    one('#trace').hidden = !t;
    one('#trace-told').textContent = !t ? 'No iterations are shown: neither the record nor the log beside it has their times.'
      : `The line is the slowest rank's time${t.width > 1 ? `, the longest of each ${t.width} iterations` : ''}` + (t.ranks > 1 || t.width > 1 ? '; the area is p5 to p95' + (t.ranks > 1 ? ` over ${t.ranks} ranks.` : ' of these.') : '.');
    if (t) {
      const step = (t.last - t.first + 1) / t.slow.length;
      await show('trace', 'trace', () => data.specs.trace, { trace: t.slow.map((v, i) => ({ n: Math.min(t.last, Math.round(t.first + (i + 1) * Math.max(step, t.width) - 1)), slowest: v, low: t.low[i], high: t.high[i] })) }, `Iterations of ${r.name}`);
    }
    if (move) { box.scrollIntoView({ block: 'nearest' }); box.focus({ preventScroll: true }); }
    remember();
  };

  // --- tables
  const natural = new Intl.Collator('en', { numeric: true });
  const sort = (table, column, down) => {
    const body = table.tBodies[0], sign = down ? -1 : 1;
    const key = tr => { const td = tr.cells[column]; return td.dataset.v !== undefined ? +td.dataset.v : td.textContent.trim(); };
    const rows = [...body.rows].map(tr => [key(tr), tr]);
    rows.sort(([a], [b]) => a === '' || b === '' ? (a === '') - (b === '') : sign * (typeof a === 'number' && typeof b === 'number' ? a - b : natural.compare(a, b)));
    body.append(...rows.map(([, tr]) => tr));
    all('th', table).forEach((th, i) => i === column ? th.setAttribute('aria-sort', down ? 'descending' : 'ascending') : th.removeAttribute('aria-sort'));
    sorted[table.dataset.table] = `${column}${down ? '-' : ''}`;
  };
  all('th .sort').forEach(span => {
    const button = make('button', span.textContent, { type: 'button' }), th = span.closest('th');
    span.replaceWith(button);
    button.onclick = () => { sort(th.closest('table'), th.cellIndex, th.getAttribute('aria-sort') === 'ascending'); remember(); };
  });
  all('[data-open]').forEach(span => {
    const button = make('button', span.textContent, { type: 'button' });
    button.setAttribute('aria-label', `${span.textContent}: open ${runs[span.dataset.open]?.name}`);
    button.onclick = () => details(+span.dataset.open, true);
    if (drawn) span.replaceWith(button);
  });
  const rebase = () => all('#t-cases td[data-q]').forEach(td => { // the columns that another base changes
    const c = cases[td.parentNode.dataset.c], how = td.dataset.q === 'efficiency' ? 'efficiency' : 'speedup', p = data.kind === 'report' && point(c, { how });
    td.textContent = !p ? '' : td.dataset.q === 'efficiency' ? percent(p[0]) : td.dataset.q === 'speedup' ? p[0].toFixed(2) : p[1] === null ? '' : `${p[1].toFixed(2)}–${p[2].toFixed(2)}`;
    if (p) td.dataset.v = td.dataset.q === 'speedup_ends' ? p[1] ?? '' : p[0]; else delete td.dataset.v;
  });
  const quoted = {
    csv: rows => rows.map(row => row.map(t => { t = /^[=+@-]/.test(t) && isNaN(parseFloat(t)) ? "'" + t : t; return /[",\n]/.test(t) ? `"${t.replace(/"/g, '""')}"` : t; }).join(',')).join('\n') + '\n',
    markdown: rows => { const lines = rows.map(row => `| ${row.map(t => t.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/([\\`*_[\]|~#$])/g, '\\$1')).join(' | ')} |`); lines.splice(1, 0, `|${' - |'.repeat(rows[0].length)}`); return lines.join('\n') + '\n'; },
    latex: rows => { const plain = { '\\': '\\textbackslash{}', '~': '\\textasciitilde{}', '^': '\\textasciicircum{}', '–': '--' }; return `\\begin{tabular}{${'l'.repeat(rows[0].length)}}\n` + rows.map(row => row.map(t => t.replace(/[\\~^–&%$#_{}]/g, c => plain[c] || '\\' + c)).join(' & ') + ' \\\\\n').join('') + '\\end{tabular}\n'; },
  };
  const copied = async text => {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed here: the older way */ }
    const area = make('textarea', text);
    document.body.append(area);
    area.select();
    try { return document.execCommand('copy'); } finally { area.remove(); }
  };
  all('[data-copy]').forEach(button => button.onclick = async () => {
    const table = one(`#t-${button.dataset.table}`), rows = [...table.tBodies[0].rows].filter(tr => !tr.hidden);
    const head = all('th', table).map(th => [...th.children].map(e => e.textContent).join(', '));
    const done = await copied(quoted[button.dataset.copy]([head, ...rows.map(tr => [...tr.cells].map(td => td.textContent.trim()))]));
    one('output', button.parentNode).textContent = done ? `${rows.length} rows copied` : 'This browser does not allow copying here.';
  });
  all('[data-get]').forEach(button => button.onclick = async () => {
    const name = button.dataset.get, link = make('a', '', { download: name });
    link.href = URL.createObjectURL(new Blob([await unpack('file-' + name)], { type: name.endsWith('json') ? 'application/json' : 'text/csv' }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });

  // --- the address
  const remember = () => {
    const now = new URLSearchParams(), put = (name, values) => values.forEach(v => now.append(name, v));
    all('#menus select').forEach(s => s.value !== s.dataset.default && now.set(s.name, s.value));
    keys.forEach(k => put('not.' + k.dataset.key, all('input', k).filter(b => !b.checked).map(b => b.value)));
    put('hide', all('#legend input').filter(b => !b.checked).map(b => data.series[b.value]));
    if (boxes?.checked) now.set('all', '1');
    if (find?.value) now.set('find', find.value);
    Object.entries(sorted).forEach(([table, how]) => now.set('sort.' + table, how));
    if (open !== null) now.set('run', runs[open].name);
    const text = now.toString();
    if (text !== location.hash.slice(1)) history.replaceState(null, '', text ? '#' + text : location.pathname + location.search);
  };
  const recall = () => {
    const then = new URLSearchParams(location.hash.slice(1));
    all('#menus select').forEach(s => { s.value = then.get(s.name) ?? s.dataset.default; if (s.selectedIndex < 0) s.value = s.dataset.default; });
    keys.forEach(k => { const not = then.getAll('not.' + k.dataset.key); all('input', k).forEach(b => b.checked = !not.includes(b.value)); });
    all('#legend input').forEach(b => b.checked = !then.getAll('hide').includes(data.series[b.value]));
    if (boxes) boxes.checked = then.get('all') === '1';
    if (find) find.value = then.get('find') || '';
    all('table').forEach(t => { const how = then.get('sort.' + t.dataset.table); if (how && parseInt(how) < t.tHead.rows[0].cells.length) sort(t, parseInt(how), how.endsWith('-')); });
    return runs.findIndex(r => r.name === then.get('run'));
  };
  const update = async () => { wide = drawn?.clientWidth; filter(); if (based !== (based = menu('base'))) rebase(); await draw(); remember(); };
  all('#menus, #filters').forEach(form => { form.addEventListener('input', update); form.addEventListener('submit', e => e.preventDefault()); });
  all('#legend input, #all').forEach(box => box.addEventListener('change', update));
  const reset = async () => { open = null; sorted = {}; if (one('#detail')) one('#detail').hidden = true; history.replaceState(null, '', location.pathname + location.search); recall(); await update(); };
  one('#reset')?.addEventListener('click', reset);
  one('#close')?.addEventListener('click', () => { const at = open; one('#detail').hidden = true; open = null; remember(); one(`tr[data-r="${at}"] button`)?.focus({ preventScroll: true }); });
  one('#to-row')?.addEventListener('click', () => toRow(`#t-runs tr[data-r="${open}"]`));
  addEventListener('keydown', e => { if (e.key === 'Escape') { one('#tip')?.remove(); if (open !== null && one('#detail').contains(document.activeElement)) one('#close').click(); } });
  addEventListener('hashchange', async () => { if (/=/.test(location.hash)) { const run = recall(); await update(); if (run >= 0) await details(run); } });

  data.bases = new Map(cases.map(c => [c.s + ' ' + c.topology, c]));
  document.documentElement.classList.add('on');
  const first = recall();
  await update();
  if (first >= 0) await details(first);
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
