"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const details = one("#details");
  let view = "graph", which = "file", chosen = null, hits = [], hit = -1;

  // -- zoom and pan by the viewBox of each picture ----------------------------------------

  const boxes = new Map();
  const pane = () => one(view === "graph" ? `.pane[data-graph="${which}"]` : `.pane[data-pane="${view}"]`);
  const picture = () => one("svg", pane());

  function show(svg, box) {
    boxes.set(svg, box);
    svg.setAttribute("viewBox", box.join(" "));
  }
  function natural(svg) { return [0, 0, svg.width.baseVal.value, svg.height.baseVal.value]; }
  function size(svg) { return [Number(svg.dataset.width), Number(svg.dataset.height)]; }
  function fit(svg) { show(svg, [0, 0, ...size(svg)]); }
  // A picture starts fitted to the window; a graph at its top, at a readable scale.
  function start(svg) {
    const [width] = size(svg);
    const seen = svg.getBoundingClientRect();
    if (!svg.classList.contains("graph") || !seen.width) return fit(svg);
    const wide = Math.min(Math.max(width, seen.width / 1.2), seen.width * 1.4);
    const tall = wide * seen.height / seen.width;
    const first = one(".op rect", svg);
    const middle = first ? Number(first.getAttribute("x")) + Number(first.getAttribute("width")) / 2 : width / 2;
    // Centre the first operator, but keep the view within the picture.
    const slack = [Math.min(0, width - wide), Math.max(0, width - wide)];
    const left = Math.max(slack[0], Math.min(middle - wide / 2, slack[1]));
    show(svg, [left, 0, wide, tall]);
  }
  function zoom(svg, factor, x = 0.5, y = 0.5) {
    const [left, top, width, height] = boxes.get(svg);
    show(svg, [left + width * (1 - factor) * x, top + height * (1 - factor) * y, width * factor, height * factor]);
  }
  // Picture units per pixel of the screen; the viewBox keeps the aspect ratio.
  function unit(svg) {
    const seen = svg.getBoundingClientRect(), [, , width, height] = boxes.get(svg);
    return Math.max(width / seen.width, height / seen.height);
  }
  for (const svg of all(".pane > svg")) {
    const [, , width, height] = natural(svg);
    svg.dataset.width = width;
    svg.dataset.height = height;
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    boxes.set(svg, [0, 0, width, height]);
    svg.addEventListener("wheel", event => {
      event.preventDefault();
      const seen = svg.getBoundingClientRect();
      zoom(svg, Math.exp(Math.max(-0.5, Math.min(0.5, event.deltaY / 400))),
        (event.clientX - seen.left) / seen.width, (event.clientY - seen.top) / seen.height);
    }, { passive: false });
    let last = null, moved = 0;
    svg.addEventListener("pointerdown", event => { last = [event.clientX, event.clientY]; moved = 0; });
    svg.addEventListener("pointermove", event => {
      if (!last || !event.buttons) return;
      const by = [event.clientX - last[0], event.clientY - last[1]];
      moved += Math.abs(by[0]) + Math.abs(by[1]);
      if (moved < 4) return;
      svg.classList.add("moving");
      last = [event.clientX, event.clientY];
      const [left, top, width, height] = boxes.get(svg), scale = unit(svg);
      show(svg, [left - by[0] * scale, top - by[1] * scale, width, height]);
    });
    window.addEventListener("pointerup", () => { last = null; svg.classList.remove("moving"); });
    svg.addEventListener("click", event => {
      const target = event.target.closest("[data-op]");
      if (target && moved < 4) choose(target.dataset.op);
    });
  }

  // -- views ------------------------------------------------------------------------------

  const started = new Set();
  function refresh() {
    for (const button of all("nav button")) button.classList.toggle("on", button.dataset.view === view);
    for (const other of all(".pane")) other.hidden = other !== pane();
    const svg = picture();
    if (svg && !started.has(svg)) { started.add(svg); start(svg); }
    search();
  }
  for (const button of all("nav button")) button.onclick = () => { view = button.dataset.view; refresh(); };
  one("#which").onchange = event => { which = event.target.value; view = "graph"; refresh(); if (chosen) choose(chosen); };
  one("#plus").onclick = () => picture() && zoom(picture(), 1 / 1.4);
  one("#minus").onclick = () => picture() && zoom(picture(), 1.4);
  one("#fit").onclick = () => picture() && fit(picture());

  // -- colours ----------------------------------------------------------------------------

  function heat(share, largest) {
    const t = largest > 0 ? Math.sqrt(share / largest) : 0;
    return `hsl(${50 - 45 * t},${85}%,${94 - 36 * t}%)`;
  }
  function paint() {
    const byTime = one("#colour").value === "time";
    for (const name of ["file", "run"]) {
      const ops = data.graphs[name];
      const largest = Math.max(0, ...Object.values(ops).map(op => op.time ? op.time.share : 0));
      for (const group of all(`.pane[data-graph="${name}"] .op`)) {
        const op = ops[group.dataset.op];
        group.classList.toggle("fused", !op.time && Boolean(op.owner));
        one("rect", group).setAttribute("fill",
          !byTime ? op.colour : op.time ? heat(op.time.share, largest) : "#f3f3f3");
      }
    }
  }
  one("#colour").onchange = paint;

  // -- search -----------------------------------------------------------------------------

  function search() {
    const text = one("#search").value.trim().toLowerCase();
    const ops = data.graphs[which];
    hits = text === "" ? [] : Object.keys(ops).filter(name => {
      const op = ops[name];
      return [name, op.type, ...op.inputs.map(o => o.name), ...op.outputs.map(o => o.name)]
        .some(word => word.toLowerCase().includes(text));
    });
    const found = new Set(hits);
    for (const svg of all(".graph")) svg.classList.toggle("searching", text !== "");
    for (const group of all(`.pane[data-graph="${which}"] .op`)) group.classList.toggle("hit", found.has(group.dataset.op));
    one("#hits").textContent = text === "" ? "" : `${hits.length} found`;
    hit = -1;
  }
  one("#search").oninput = search;
  one("#search").onkeydown = event => {
    if (event.key === "Escape") { event.target.value = ""; search(); event.target.blur(); }
    if (event.key !== "Enter" || hits.length === 0) return;
    hit = (hit + (event.shiftKey ? hits.length - 1 : 1)) % hits.length;
    view = "graph";
    const at = hit;
    refresh();
    hit = at;
    one("#hits").textContent = `${hit + 1} of ${hits.length}`;
    choose(hits[hit]);
  };

  // -- keys -------------------------------------------------------------------------------

  // Up selects a producer, down a reader, left and right the neighbour in the layer.
  function neighbour(key) {
    const ops = data.graphs[which], op = ops[chosen];
    if (!op) return Object.keys(ops)[0];
    if (key === "ArrowUp") return op.inputs.flatMap(o => o.ops)[0];
    if (key === "ArrowDown") return op.outputs.flatMap(o => o.ops)[0];
    const corner = group => ["y", "x"].map(axis => Number(one("rect", group).getAttribute(axis)));
    const groups = all(".op", picture()), [y, x] = corner(groups.find(group => group.dataset.op === chosen));
    const right = key === "ArrowRight";
    const beside = groups.map(group => [group.dataset.op, ...corner(group)])
      .filter(([, top, left]) => Math.abs(top - y) < 4 && (right ? left > x : left < x))
      .sort((a, b) => right ? a[2] - b[2] : b[2] - a[2]);
    return beside.length ? beside[0][0] : undefined;
  }
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (["INPUT", "SELECT"].includes(document.activeElement.tagName)) return;
    const key = event.key;
    if (key === "/") one("#search").focus();
    else if (key === "+" || key === "=") one("#plus").click();
    else if (key === "-") one("#minus").click();
    else if (key === "0") one("#fit").click();
    else if (key.startsWith("Arrow") && view === "graph") { const name = neighbour(key); if (name) choose(name); }
    else return;
    event.preventDefault();
  });

  // -- selecting an operator ---------------------------------------------------------------

  function choose(name) {
    if (!data.graphs[which][name]) {
      const other = which === "file" ? "run" : "file";
      if (!data.graphs[other][name]) return;
      which = other;
      one("#which").value = other;
      refresh();
    }
    chosen = name;
    for (const element of all("[data-op]")) element.classList.toggle("chosen", element.dataset.op === name);
    // Lines from one operator share a trunk: highlight it up to the branch of the reader.
    for (const svg of all(".graph")) {
      const paths = all("path", svg), branch = new Map();
      for (const path of paths) if (path.dataset.to === name) branch.set(path.dataset.from, Number(path.dataset.branch));
      for (const path of paths) {
        const { from, to } = path.dataset;
        path.classList.toggle("near", from === name || to === name ||
          (to === undefined && branch.has(from) && Number(path.dataset.branch) <= branch.get(from)));
      }
    }
    if (view === "graph") reveal(name);
    describe(name, data.graphs[which][name]);
    history.replaceState(null, "", `#op=${encodeURIComponent(name)}`);
  }
  function reveal(name) {
    const svg = picture(), rect = one(`.op[data-op="${CSS.escape(name)}"] rect`, svg);
    if (!rect) return;
    const x = Number(rect.getAttribute("x")) + Number(rect.getAttribute("width")) / 2, y = Number(rect.getAttribute("y"));
    const seen = svg.getBoundingClientRect(), scale = unit(svg);
    const [left, top, width, height] = boxes.get(svg);
    // The visible area; the viewBox is centred in the element.
    const half = [seen.width * scale / 2, seen.height * scale / 2], centre = [left + width / 2, top + height / 2];
    if (Math.abs(x - centre[0]) < half[0] * 0.9 && Math.abs(y - centre[1]) < half[1] * 0.9) return;
    show(svg, [x - width / 2, y - height / 2, width, height]);
  }

  const escaped = text => String(text).replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  // A line may break after dots and underscores of a name, not within its words.
  const soft = text => String(text).split(/(?<=[._\/,])(?=\w)/).map(escaped).join("<wbr>");
  const shape = o => o.shape ? `(${o.shape.map(n => n === null ? "?" : n).join(",")})${o.dtype || ""}` : "";
  const number = x => Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(3) : Number(x.toPrecision(5)).toString();
  const link = name => `<a href="#op=${encodeURIComponent(name)}" data-go="${escaped(name)}">${soft(name)}</a>`;
  const rows = pairs => `<table>${pairs.map(([k, v]) => `<tr><td>${soft(k)}</td><td>${v}</td></tr>`).join("")}</table>`;

  function timing(time) {
    const pairs = [["time", `${time.us.toFixed(1)} µs, ${(time.share * 100).toFixed(1)} %`], ["kernel", soft(time.kernels.join(", "))]];
    if (time.flop) pairs.push(["operations", `${(time.flop / 1e6).toFixed(2)} MFLOP, ${(time.flop / time.us / 1e3).toFixed(1)} GFLOP/s`]);
    if (time.saved > 0) pairs.push(["saved", `${(time.saved / 1e6).toFixed(2)} of ${((time.flop + time.saved) / 1e6).toFixed(2)} MFLOP of the definition`]);
    if (time.bytes) pairs.push(["memory", `${(time.bytes / 1e6).toFixed(2)} MB, ${(time.bytes / time.us / 1e3).toFixed(1)} GB/s`]);
    if (time.roofline) pairs.push(["roofline", `${(time.roofline * 100).toFixed(0)} %`]);
    return rows(pairs);
  }
  function histogram(w) {
    const most = Math.max(...w.histogram), wide = 300 / w.histogram.length;
    const bars = w.histogram.map((n, i) => `<rect x="${(i * wide).toFixed(1)}" y="${(50 - 48 * n / most).toFixed(1)}" width="${(wide - 1).toFixed(1)}" height="${(48 * n / most).toFixed(1)}" fill="#7a9cc6"/>`);
    return `<svg width="300" height="66" viewBox="0 0 300 66">${bars.join("")}<path class="grid" d="M0,50.5H300" style="stroke:#999"/>`
      + `<text x="0" y="63" style="text-anchor:start">${number(w.from)}</text><text x="300" y="63" style="text-anchor:end">${number(w.to)}</text></svg>`;
  }
  function describe(name, op) {
    let html = `<h2>${soft(name)}</h2>${soft([op.type, ...op.post].join(" + "))}`;
    if (op.location) html += ` <small>${escaped(op.location)}</small>`;
    if (op.time) html += `<h2>Time</h2>${timing(op.time)}`;
    else if (op.owner) html += `<h2>Time</h2>part of ${link(op.owner)}${op.owner_time ? timing(op.owner_time) : ""}`;
    else if (!op.type.startsWith("pnnx.")) html += "<h2>Time</h2>none: it has no step";
    if (op.tree) html += `<h2>Expression</h2><code>${escaped(op.infix)}</code><div class="tree">${op.tree}</div>`;
    if (Object.keys(op.params).length) html += `<h2>Parameters</h2>${rows(Object.entries(op.params).map(([k, v]) => [k, soft(v)]))}`;
    for (const [title, operands] of [["Inputs", op.inputs], ["Outputs", op.outputs]]) {
      if (operands.length) html += `<h2>${title}</h2>${rows(operands.map(o => [`${o.key ? `${o.key}=` : ""}%${o.name}`, `${soft(shape(o))} ${o.ops.map(link).join(", ")}`]))}`;
    }
    for (const w of op.weights) {
      html += `<h2>@${soft(w.key)} ${soft(shape(w))}</h2>`;
      if (!w.histogram) continue;
      html += `<div>min ${number(w.min)}, max ${number(w.max)}, mean ${number(w.mean)}, deviation ${number(w.std)}, zeros ${(w.zeros * 100).toFixed(1)} %${w.odd ? `, ${w.odd} not finite` : ""}</div>${histogram(w)}`;
    }
    details.innerHTML = html;
    details.scrollTop = 0;
    for (const anchor of all("a[data-go]", details)) anchor.onclick = event => { event.preventDefault(); view = "graph"; refresh(); choose(anchor.dataset.go); };
  }

  // -- tables -------------------------------------------------------------------------------

  // Clickable rows and headings can be focused with Tab and pressed with Enter.
  for (const cell of all("tr[data-op], .sortable th")) {
    cell.tabIndex = 0;
    cell.onkeydown = event => { if (event.key === "Enter") cell.click(); };
  }
  for (const row of all("tr[data-op]")) row.onclick = () => choose(row.dataset.op);
  for (const table of all(".sortable")) {
    all("th", table).forEach((head, column) => {
      let down = true;
      head.onclick = () => {
        const body = one("tbody", table), key = row => row.cells[column].textContent;
        const sorted = [...body.rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)], [m, n] = [parseFloat(x), parseFloat(y)];
          return head.classList.contains("n") ? (n || 0) - (m || 0) : x.localeCompare(y);
        });
        body.append(...(down ? sorted : sorted.reverse()));
        down = !down;
      };
    });
  }

  paint();
  refresh();
  const wanted = decodeURIComponent((location.hash.match(/#op=(.+)/) || [])[1] || "");
  if (wanted) choose(wanted);
})();
