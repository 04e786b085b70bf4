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
  let views = {}, open = null, sorted = {}, based, later, zoomable = [], drag = null;

  // --- numbers
  const grouped = text => text.replace(/(?<![\d.])[1-9]\d{4,}/g, d => d.replace(/\B(?=(\d{3})+$)/g, '\u202f')); // as in the tables
  const digits = v => v == null ? '' : grouped(Math.abs(v) >= 1e5 ? v.toFixed(0) : Math.abs(v) >= 10 ? v.toFixed(2) : String(+v.toPrecision(4)));
  const percent = v => v == null ? '' : (100 * v).toFixed(1) + ' %';
  const shown = (v, q) => v == null ? '' : q.form.includes('%') ? percent(v) : q.how === 'speedup' ? v.toFixed(2) : digits(v);
  const baseOf = c => { const b = data.bases.get(c.s + ' ' + (menu('base') === 'own' ? c.base : menu('base'))); return b && b.m[c.unit] ? b : null; };
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
  const filter = () => {
    const passes = choice();
    cases.forEach(c => c.visible = passes(c));
    lines.forEach(([tr, c]) => { if (tr.hidden === c.visible) tr.hidden = !c.visible; });
    const some = cases.filter(c => c.visible).length, few = runs.filter(r => cases[r.c].visible).length;
    if (one('#shown')) one('#shown').textContent = `${some} of ${cases.length} cases` + (runs.length ? `, ${few} of ${runs.length} runs` : '') + ' shown' + (some ? '' : ': nothing matches');
    all('.nothing').forEach(p => p.hidden = !!one('tbody tr:not([hidden])', p.previousElementSibling));
  };

  // --- the figure
  // A panel for each value of the key that is chosen, and for each of the two quantities.
  const panels = () => {
    const key = menu('facet'), names = [...new Set([menu('quantity'), menu('beside')])].filter(name => data.quantities[name]);
    const values = key ? [...new Set(cases.filter(c => c.visible).map(c => c.keys[key]))].sort(natural.compare) : [];
    return (values.length ? values : ['']).flatMap(v => names.map(name => ({
      name, q: data.quantities[name], title: v && `${key} ${v}`, across: names.length > 1 ? 2 : Math.min(values.length || 1, 2), has: c => !v || c.keys[key] === v,
    })));
  };
  // The series of each panel: those that are visible, not unticked, and not too many unless they are asked for.
  const choose = parts => {
    const there = new Set(), may = new Set(), on = new Set(), most = boxes && !boxes.checked ? data.most : Infinity;
    for (const p of parts) {
      const mine = [...new Set(cases.filter(c => c.visible && p.has(c)).map(c => c.s))].sort((a, b) => a - b);
      mine.forEach((s, i) => { there.add(s); if (i < most) may.add(s); });
      p.series = mine.slice(0, most).filter(s => one(`#legend input[value="${s}"]`)?.checked ?? true);
      p.series.forEach(s => on.add(s));
    }
    all('#legend li').forEach(li => li.hidden = !may.has(+li.dataset.s));
    all('label.all:has(#all)').forEach(label => label.hidden = most === Infinity ? !boxes?.checked : there.size === may.size);
    const not = [...there].filter(s => !on.has(s)), names = not.slice(0, 4).map(s => data.short[s].slice(0, 40)).join(', ') + (not.length > 4 ? ` and ${not.length - 4} more` : '');
    one('#drawn').textContent = there.size < 2 ? '' : not.length ? `${on.size} of ${there.size} series are drawn; not drawn: ${names}.` : `All ${there.size} series are drawn.`;
  };
  const devices = [...new Set(cases.map(c => c.n))].sort((a, b) => a - b), least = devices[0], most = devices.at(-1);
  // Where a panel of this width has a number of devices: the names of series stand at the right of the last.
  const along = (width, x, series) => {
    const longest = series.length > 1 ? Math.max(...series.map(s => data.short[s].length)) : 0, room = longest ? Math.min(6 * longest + 30, 0.36 * width) : 0;
    const low = x === 'log' ? least / 1.4 : 0, high = x === 'log' ? most * 1.25 : most * 1.06, inner = Math.max(width - 70 - room, 80);
    const px = x === 'log' ? inner / Math.log2(high / low) : inner / high, moved = (n, by) => x === 'log' ? n * 2 ** (by / px) : n + by / px;
    const scale = n => px * (x === 'log' ? Math.log2(n) : n), gap = Math.min(inner / 3, ...devices.slice(1).map((n, i) => scale(n) - scale(devices[i])));
    return { low, high: moved(high, room), end: moved(high, longest && 12), moved, gap, letters: Math.floor((room - 26) / 5.8) };
  };
  const scalingData = (p, y, at) => {
    const { q, name, series } = p, out = { ideal: [], lines: [], leaders: [], labels: [], runs: [], hollow: [], without: [], intervals: [], cases: [] };
    // Beside a sloping line a mark keeps its place; else the series at one device count stand side by side.
    const room = q.ideal === 'line' ? 0 : Math.min(0.55 * at.gap / Math.max(series.length, 1), 12), beside = room ? Math.min(room / 2 + 4, 8) : 8;
    const place = (c, px) => at.moved(c.n, (series.indexOf(c.s) - (series.length - 1) / 2) * room + px), has = c => c.visible && p.has(c) && series.includes(c.s);
    cases.forEach((c, i) => {
      const v = has(c) && point(c, q);
      if (!v || (y === 'log' && !(v[0] > 0))) return;
      out.cases.push({ s: c.s, x: place(c, 0), y: v[0], c: i, q: name, n: c.n });
      if (v[1] !== null) out.intervals.push({ s: c.s, x: place(c, 0), low: v[1], high: v[2] });
    });
    out.lines = out.cases;
    runs.forEach((r, i) => {
      const c = cases[r.c], f = factor(c, q), v = r.m[q.of || c.unit];
      if (!has(c)) return;
      const dot = { s: c.s, x: place(c, beside), r: i, q: name, y: v == null || f === null ? null : v * f };
      if (dot.y === null) { if (!r.ok) out.without.push(dot); } else (r.ok ? out.runs : out.hollow).push(dot);
    });
    // All series have one ideal if it is a ratio; else only one that is alone has any.
    const lone = q.how === 'speedup' || q.how === 'efficiency' || series.length === 1, b = q.ideal && lone && out.cases.length && baseOf(cases[out.cases[0].c]), v = b && point(b, q)?.[0];
    for (let i = 0; v && devices.length > 1 && i <= 40; i++) { const n = at.low + (at.end - at.low) * i / 40; out.ideal.push({ x: n, y: q.ideal === 'line' ? v * n / b.n : v }); }
    return out;
  };
  // The ends of the axis of one quantity, alike in all its panels.
  const limits = (y, sets) => {
    const values = sets.flatMap(s => [...s.cases, ...s.runs, ...s.hollow].map(d => d.y).concat(s.intervals.flatMap(d => [d.low, d.high]), s.ideal.map(d => d.y)));
    const high = Math.max(...values), low = Math.min(...values.filter(v => y !== 'log' || v > 0)), span = Math.max(high - low, 0.1 * high);
    return !values.length ? [0, 1] : y === 'log' ? [low / 1.15, high * 1.15] : [low >= 0 && (y === 'zero' || low < data.near * high) ? 0 : high - 1.08 * span, high + 0.06 * span];
  };
  // The names of series beside the ends of their lines, from above, moved apart where they would touch.
  const nameLines = (sets, at, [low, high], y, height) => {
    const to = y === 'log' ? Math.log : v => v, back = y === 'log' ? Math.exp : v => v, px = (to(high) - to(low)) / Math.max(height - 56, 60), ends = new Map();
    sets.cases.forEach(c => { if (!(ends.get(c.s)?.n > c.n)) ends.set(c.s, c); });
    const last = [...ends.values()].sort((a, b) => b.y - a.y || b.x - a.x), step = 12;
    if (ends.size < 2 || last.length * step > height - 44 || at.letters < 3) return;
    let above = to(high) / px + step / 2;
    last.forEach((c, i) => {
      const v = Math.max(Math.min(to(c.y) / px, above - step), to(low) / px + (last.length - i - 0.5) * step), text = data.short[c.s], x = at.end;
      above = v;
      sets.leaders.push({ s: c.s, x: at.moved(c.x, 5), y: c.y, x2: x, y2: back(v * px) });
      sets.labels.push({ x, y: back(v * px), text: text.length > at.letters ? text.slice(0, at.letters - 1) + '…' : text });
    });
  };
  const tints = () => data.series.map(name => data.colours[menu('colour') || ''][name]);
  const scalingSpec = (q, x, y, height, signals, lowest) => {
    const spec = structuredClone({ ...data.specs.scaling, height });
    spec.params.forEach(p => p.value = signals[p.name]);
    spec.encoding.color.scale.range = tints();
    Object.assign(spec.encoding.x.scale, x === 'log' ? { type: 'log', base: 2 } : { type: 'linear', zero: false });
    if (!lowest) spec.encoding.x.axis.title = null;
    Object.assign(spec.encoding.y.axis, { title: q.axis, format: q.form, tickCount: { expr: 'height / 50' } });
    Object.assign(spec.encoding.y.scale, y === 'log' ? { type: 'log', base: 2 } : { type: 'linear', zero: false });
    return spec;
  };
  const draw = async () => {
    if (!drawn) return;
    if (data.kind === 'compare') return drawRatios();
    if (data.kind === 'history') return drawTrends();
    const parts = panels(), x = menu('x'), told = [], rows = parts.length / parts[0].across;
    choose(parts);
    all('#legend li').forEach(li => { const [line, mark] = all('path', li); line.setAttribute('stroke', tints()[li.dataset.s]); mark.setAttribute('fill', tints()[li.dataset.s]); });
    one('#menus [name=y] [value=log]').disabled = !parts.some(p => p.q.logs);
    if (drawn.children.length !== parts.length) {
      Object.keys(views).filter(id => id.startsWith('live')).forEach(id => { views[id].made.finalize(); delete views[id]; });
      drawn.replaceChildren(...parts.map((_, i) => { const div = make('div'); div.append(make('p'), make('div', '', { id: `live-${i}` })); return div; }));
    }
    drawn.style.setProperty('--across', parts[0].across);
    zoomable = parts;
    const narrow = drawn.clientWidth < 640, height = narrow ? 270 : rows > 1 ? 205 : 340;
    for (const p of parts) {
      p.y = menu('y') === 'log' && !p.q.logs ? 'zero' : menu('y');
      p.at = along(narrow ? drawn.clientWidth : drawn.clientWidth / p.across - 16, x, [...new Set(parts.flatMap(each => each.series))]);
      p.sets = scalingData(p, p.y, p.at);
    }
    for (const [i, p] of parts.entries()) {
      const alike = parts.filter(other => other.name === p.name), ends = limits(p.y, alike.map(other => other.sets)), q = p.q;
      nameLines(p.sets, p.at, ends, p.y, height);
      const lacks = cases.filter(c => c.visible && p.series.includes(c.s) && !point(c, q)).length, based = q.how === 'speedup' || q.how === 'efficiency';
      if (alike[0] === p && lacks) told.push(`Not drawn: ${lacks} ${lacks === 1 ? 'case' : 'cases'} without ${q.label}${based ? ` over ${menu('base') === 'own' ? "its sweep's base" : menu('base') || 'a base'}` : ''}.`);
      const cut = p.y !== 'log' && ends[0] > 0, lowest = narrow || i >= parts.length - p.across;
      drawn.children[i].firstChild.textContent = [p.title, cut ? 'axis not from 0' : ''].filter(Boolean).join(', ');
      const signals = { xlow: p.at.low, xhigh: p.at.high, ylow: ends[0], yhigh: ends[1] };
      Object.assign(p, { id: `live-${i}`, ends: { ...signals }, logs: { x: x === 'log', y: p.y === 'log' } });
      await show(`live-${i}`, `${q.label} ${x} ${p.y} ${height} ${lowest} ${menu('colour')}`, () => scalingSpec(q, x, p.y, height, signals, lowest), p.sets,
        `${q.axis} against devices${p.title && ', ' + p.title}: ${p.sets.cases.length} cases of ${p.series.length} series. The tables below have every figure.`, signals);
    }
    if (parts.every(p => !p.sets.cases.length && !p.sets.runs.length && !p.sets.hollow.length)) told.splice(0, 9, cases.some(c => c.visible) ? 'Nothing that is chosen has this quantity: choose another quantity or base, or fewer filters.' : 'Nothing matches the filters.');
    one('#told').textContent = told.join(' ');
    return one('#parts') && drawParts();
  };
  const drawParts = () => {
    const here = cases.filter(c => c.visible && c.parts).slice(0, 24), height = 20 * here.length + (one('#parts').clientWidth < 560 ? 150 : 90);
    const bars = here.flatMap(c => c.parts.map(([part, ms], at) => ({ label: data.series.length > 1 ? `${data.short[c.s]} ${c.topology}` : c.topology, part, ms, at, c: cases.indexOf(c) })));
    return show('parts', `parts ${height}`, () => ({ ...data.specs.parts, height }), { parts: bars }, `What the steps of the first ${here.length} cases are made of. The table below has every figure.`);
  };
  const drawRatios = () => {
    const known = cases.filter(c => c.visible && c.ratio != null).map(c => ({ label: c.label, x: c.ratio, low: c.low, high: c.high, outcome: c.outcome, c: cases.indexOf(c) })), sets = { cases: known, intervals: known.filter(d => d.low != null) };
    one('#told').textContent = sets.cases.length ? '' : 'None of the chosen cases has a ratio.';
    const height = 24 * sets.cases.length + 60;
    return show('live', `ratios ${height}`, () => ({ ...data.specs.ratios, height }), sets, `B / A of ${sets.cases.length} cases. The table below has every figure.`);
  };
  const drawTrends = () => {
    const seen = cases.filter(c => c.visible), most = boxes && !boxes.checked ? data.most : Infinity;
    const on = seen.slice(0, most).filter(c => one(`#legend input[value="${c.s}"]`)?.checked ?? true);
    all('#legend li').forEach(li => li.hidden = !seen.slice(0, most).includes(cases[li.dataset.s]));
    one('#drawn').textContent = on.length < seen.length ? `${on.length} of ${seen.length} cases are drawn; slower ones come first.` : '';
    const points = on.flatMap(c => c.points.map((p, i) => ({ s: c.s, c: c.s, p: i, x: p.x, y: p.y, low: p.low, high: p.high, change: p.change })));
    const sets = { lines: points, intervals: points.filter(p => p.low != null), cases: points };
    ['slower', 'faster', 'spike'].forEach(name => sets[name] = points.filter(p => p.change === name));
    one('#told').textContent = points.length ? '' : 'Nothing matches the filters.';
    return show('live', 'trends', () => data.specs.trends, sets, `Throughput over time of ${on.length} cases. The tables below have every change.`);
  };
  // Draw anew what has another name, or data for a layer that is not there; else only change the data. A layer that a filter
  // empties stays (to compile takes longer than all else); of that Vega would warn, since nothing has no extent.
  const show = async (id, name, spec, sets, label, signals = {}) => {
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
        actions: false, ast: true, formatLocale: { decimal: '.', thousands: '\u202f', grouping: [3], currency: ['', ''] }, renderer: 'svg', defaultStyle: false,
        tooltip: (_, event, __, value) => tip(event, value), loader: { load: () => Promise.reject(new Error('offline')) },
      });
      view = views[id] = { name, made, layers: used };
      made.view.addEventListener('click', (_, item) => pick(item?.datum));
    }
    view.made.view.logLevel(used.length < view.layers.length ? vega.Error : vega.Warn);
    view.layers.forEach(set => view.made.view.data(set, sets[set]));
    Object.entries(signals).forEach(([signal, value]) => view.made.view.signal(signal, value));
    one('#' + id).setAttribute('role', 'img');
    one('#' + id).setAttribute('aria-label', label);
    await view.made.view.runAsync();
    one(`#${id} svg`)?.setAttribute('aria-hidden', 'true');
  };

  // --- zoom: other ends of a panel's axes, until it is drawn anew
  // Show the stretches x and y of what is shown now, as fractions from the left and from below; y of one quantity, or of all.
  const zoom = (x, y, name) => zoomable.forEach((p, i) => {
    const { made: { view }, layers } = views[p.id] || { made: {} };
    for (const [axis, parts] of name && p.name !== name ? [['x', x]] : [['x', x], ['y', y]]) {
      const low = p.ends[axis + 'low'], high = p.ends[axis + 'high'], [from, to] = parts.map(f => p.logs[axis] ? low * (high / low) ** f : low + f * (high - low));
      if (!view || !(to - from > 1e-6 * Math.abs(to) && Math.abs(to) < 1e12)) return; // where numbers end
      Object.assign(p.ends, { [axis + 'low']: from, [axis + 'high']: to });
    }
    view.logLevel(vega.Error); // as in show
    ['leaders', 'labels'].forEach(set => layers.includes(set) && view.data(set, []));
    Object.entries(p.ends).forEach(([signal, value]) => view.signal(signal, value));
    view.runAsync();
    drawn.children[i].firstChild.textContent = [p.title, 'a part: Escape shows all'].filter(Boolean).join(', ');
  });
  const band = ({ box, from, to }) => ['x', 'y'].map(axis => { // what a drag covers, as fractions of the plot; all for a few pixels
    const size = axis === 'x' ? box.width : box.height, ends = [from, to].map(at => Math.max(0, Math.min((at[axis] - box[axis]) / size, 1)));
    return Math.abs(ends[1] - ends[0]) * size < 8 ? [0, 1] : ends.sort((a, b) => a - b);
  });
  if (drawn && data.kind === 'report') {
    drawn.tabIndex = 0;
    drawn.addEventListener('pointerdown', e => {
      const p = zoomable[[...drawn.children].findIndex(div => div.contains(e.target))], box = p && one(`#${p.id} .root > g > .background`)?.getBoundingClientRect(), from = { x: e.clientX, y: e.clientY };
      if (box && e.button === 0 && e.pointerType !== 'touch' && from.x > box.left && from.x < box.right && from.y > box.top && from.y < box.bottom) drag = { name: p.name, box, from, to: from };
    });
    addEventListener('pointermove', e => {
      if (!drag || (!drag.moved && Math.hypot(e.clientX - drag.from.x, e.clientY - drag.from.y) < 5)) return;
      const { box, to, name } = drag, x = (to.x - e.clientX) / box.width, y = (e.clientY - to.y) / box.height;
      Object.assign(drag, { moved: true, pans: drag.pans ?? e.shiftKey, to: { x: e.clientX, y: e.clientY } });
      one('#tip')?.remove();
      if (drag.pans) return zoom([x, 1 + x], [y, 1 + y], name);
      const [[left, right], [top, bottom]] = band(drag);
      if (!one('#band')) document.body.append(make('div', '', { id: 'band' }));
      one('#band').style.cssText = `left:${box.x + left * box.width}px;top:${box.y + top * box.height}px;width:${(right - left) * box.width}px;height:${(bottom - top) * box.height}px`;
    });
    ['pointerup', 'pointercancel'].forEach(name => addEventListener(name, e => {
      const last = drag;
      drag = one('#band')?.remove() ?? null;
      if (!last?.moved || e.type !== 'pointerup') return;
      drawn.addEventListener('click', e => e.stopPropagation(), { capture: true, once: true }); // a drag picks nothing,
      setTimeout(() => drawn.dispatchEvent(new Event('click'))); // the next click does
      const [x, [top, bottom]] = band(last);
      if (!last.pans) zoom(x, [1 - bottom, 1 - top], last.name);
    }));
    drawn.addEventListener('dblclick', draw);
    drawn.addEventListener('keydown', e => {
      const by = { '+': 0.2, '=': 0.2, '-': -1 / 3 }[e.key];
      if (e.key === 'Escape') draw();
      if (by && !e.ctrlKey && !e.metaKey) zoom([by, 1 - by], [by, 1 - by]);
    });
  }

  // --- hover and click
  const said = datum => {
    if (datum?.slowest !== undefined) { // a point of what one run has over time
      const { x, y } = data.traces[datum.curve ?? 'trace'], spread = datum.high > datum.low ? [[datum.curve ? 'lowest to highest' : 'p5 to p95', `${digits(datum.low)}–${digits(datum.high)}`]] : [];
      return [`${x.split(' of ')[0]} ${grouped(String(datum.n))}`, [[y, digits(datum.slowest)], ...spread]];
    }
    if (datum?.r !== undefined) {
      const r = runs[datum.r], c = cases[r.c], q = data.quantities[datum.q], p = point(c, q);
      const value = datum.y == null ? 'no number' : shown(datum.y, q);
      const rows = [[q.label, value + (r.ok ? '' : ' (does not count)')]];
      if (p) rows.push(['median of its case', shown(p[0], q)]);
      if (p && p[1] !== null) rows.push(['interval', `${shown(p[1], q)}–${shown(p[2], q)}`]);
      return [r.name, [...rows, ...r.told.filter(([name]) => data.hover.includes(name))]];
    }
    if (datum?.c === undefined) return null;
    const c = cases[datum.c];
    if (datum.part || data.kind === 'compare') return [c.name, datum.part ? c.parts.map(([part, ms]) => [part, digits(ms) + ' ms']) : c.told];
    if (data.kind === 'history') return [c.name, c.points[datum.p].told];
    const q = data.quantities[datum.q], p = point(c, q);
    return [c.name, [[q.label, shown(p[0], q) + ' (median)'], ...(p[1] !== null ? [['interval', `${shown(p[1], q)}–${shown(p[2], q)}`]] : []), ...c.told]];
  };
  const list = (dl, rows) => dl.replaceChildren(...rows.map(([name, text]) => { const d = make('div'); d.append(make('dt', name), make('dd', text)); return d; }));
  const tip = (event, datum) => {
    one('#tip')?.remove();
    const told = said(datum);
    if (!told || drag?.moved) return;
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
  const folds = all('#detail [data-curve]'), unfold = fold => {
    const name = fold.dataset.curve, c = runs[open]?.curves?.[name];
    return c && fold.open && show(name, name, () => data.specs[name], { trace: c.x.map((n, i) => ({ curve: name, n, slowest: c.y[i], low: c.low[i] ?? c.y[i], high: c.high[i] ?? c.y[i] })) }, `${data.traces[name].title} of ${runs[open].name}`);
  };
  folds.forEach(fold => fold.addEventListener('toggle', () => unfold(fold)));
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
    for (const fold of folds) { fold.hidden = !r.curves?.[fold.dataset.curve]; await unfold(fold); }
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
    const there = all('th', table).filter(th => getComputedStyle(th).display !== 'none'), text = e => e.textContent.trim().replace(/\u202f/g, '');
    const head = there.map(th => [...th.children].map(e => e.textContent).join(', '));
    const done = await copied(quoted[button.dataset.copy]([head, ...rows.map(tr => there.map(th => text(tr.cells[th.cellIndex])))]));
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
  const update = async () => { filter(); if (based !== (based = menu('base'))) rebase(); await draw(); remember(); };
  all('#menus, #filters').forEach(form => { form.addEventListener('input', update); form.addEventListener('submit', e => e.preventDefault()); });
  all('#legend input, #all').forEach(box => box.addEventListener('change', update));
  const reset = async () => { open = null; sorted = {}; if (one('#detail')) one('#detail').hidden = true; history.replaceState(null, '', location.pathname + location.search); recall(); await update(); };
  one('#reset')?.addEventListener('click', reset);
  one('#close')?.addEventListener('click', () => { const at = open; one('#detail').hidden = true; open = null; remember(); one(`tr[data-r="${at}"] button`)?.focus({ preventScroll: true }); });
  one('#to-row')?.addEventListener('click', () => toRow(`#t-runs tr[data-r="${open}"]`));
  addEventListener('keydown', e => { if (e.key === 'Escape') { one('#tip')?.remove(); if (open !== null && one('#detail').contains(document.activeElement)) one('#close').click(); } });
  addEventListener('resize', () => { clearTimeout(later); later = setTimeout(draw, 200); });
  addEventListener('hashchange', async () => { if (/=/.test(location.hash)) { const run = recall(); await update(); if (run >= 0) await details(run); } });

  data.bases = new Map(cases.map(c => [c.s + ' ' + c.topology, c]));
  document.documentElement.classList.add('on');
  const first = recall();
  await update();
  if (first >= 0) await details(first);
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
