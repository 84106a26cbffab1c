"use strict";
// Draws the page from the data beside it. All text is inserted as text nodes: folder names cannot become markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  // The paper's curves start at 250,000 frames: beside a short run they would only flatten it.
  const long = data.environments.some((one) => one.series.some((series) => series.row.frames >= 1e6));
  const state = { env: 0, centre: "iqm", kind: null, seeds: false, paper: long, off: new Set(), hidden: new Set(), by: null };

  // --- elements ---------------------------------------------------------------------------------------------

  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  }

  function svg(tag, attributes = {}, text = null) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    return node;
  }

  // --- numbers ----------------------------------------------------------------------------------------------

  const known = (value) => value !== null && value !== undefined;
  const number = (value) => {
    if (!known(value)) return "–";
    const size = Math.abs(value);
    return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
  };
  const range = (low, high) => `${number(low)} to ${number(high)}`;
  const percent = (value) => (known(value) ? `${Math.round(100 * value)}%` : "–");
  function frames(value) {
    if (!known(value)) return "–";
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${letter}`;
    return String(Math.round(value));
  }
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  function ticks(low, high, wanted) {
    const raw = (high - low) / Math.max(wanted, 1);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) found.push(at * step);
    return found;
  }

  // --- a chart ----------------------------------------------------------------------------------------------
  // lines: {label, colour, dashed, x, y, low, high, complete (per point), detail(index), seeds: [[y]...]}

  function chart(lines, options) {
    const box = el("div", {
      class: "chart", tabindex: "0", role: "group",
      "aria-label": `${options.title}. Left and right arrow keys move along the curves.`,
    });
    const tooltip = el("div", { class: "tooltip", hidden: true });
    const spoken = el("div", { class: "hidden", "aria-live": "polite" });
    let view = null, at = null;

    function extent() {
      const own = lines.filter((line) => !line.dashed);
      const xs = (own.length ? own : lines).flatMap((line) => line.x.filter((_, i) => known(line.y[i])));
      const x0 = options.x0 ?? Math.min(...xs), x1 = Math.max(...xs);
      const ys = lines.flatMap((line) => [line.y, line.low || [], line.high || [], ...(line.seeds || [])].flatMap(
        (values) => values.filter((value, i) => known(value) && line.x[i] >= x0 && line.x[i] <= x1)));
      let [y0, y1] = options.y || [Math.min(0, ...ys), Math.max(...ys)];
      if (!(y1 > y0)) y1 = y0 + 1;
      return { x0, x1: x1 > x0 ? x1 : x0 + 1, y0, y1: options.y ? y1 : y1 + 0.04 * (y1 - y0) };
    }

    function draw() {
      const width = Math.max(box.clientWidth, 280);
      const wide = width > 700 && options.names;
      const height = Math.round(Math.min(options.height, Math.max(280, width * 0.62)));
      const margin = { left: 52, right: wide ? 132 : 14, top: 22, bottom: 42 };
      const { x0, x1, y0, y1 } = extent();
      const px = (x) => margin.left + ((x - x0) / (x1 - x0)) * (width - margin.left - margin.right);
      const py = (y) => height - margin.bottom - ((y - y0) / (y1 - y0)) * (height - margin.top - margin.bottom);
      const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
      for (const y of ticks(y0, y1, height / 70)) {
        root.append(svg("line", { class: "grid", x1: px(x0), x2: px(x1), y1: py(y), y2: py(y) }));
        root.append(svg("text", { x: margin.left - 8, y: py(y) + 4, "text-anchor": "end" },
          options.yText ? options.yText(y) : String(Number(y.toPrecision(6)))));
      }
      const xticks = ticks(x0, x1, Math.min(8, width / 90));
      for (const x of xticks) {
        root.append(svg("line", { class: "axis", x1: px(x), x2: px(x), y1: py(y0), y2: py(y0) + 5 }));
        root.append(svg("text", { x: px(x), y: py(y0) + 19, "text-anchor": "middle" }, options.xText(x)));
      }
      root.append(svg("line", { class: "axis", x1: px(x0), x2: px(x1), y1: py(y0), y2: py(y0) }));
      root.append(svg("text", { x: px(x1), y: height - 4, "text-anchor": "end" }, options.xLabel));
      root.append(svg("text", { x: 4, y: 12 }, options.yLabel));
      const clip = `clip-${Math.random().toString(36).slice(2)}`;
      const clipped = svg("clipPath", { id: clip });
      clipped.append(svg("rect", { x: px(x0), y: margin.top - 4, width: px(x1) - px(x0), height: py(y0) - margin.top + 5 }));
      root.append(clipped);
      const inside = svg("g", { "clip-path": `url(#${clip})` });
      root.append(inside);
      for (const line of lines) if (line.low) inside.append(band(line, px, py));
      for (const line of lines)
        for (const seed of line.seeds || [])
          inside.append(svg("path", { d: path(line.x, seed, px, py), fill: "none", stroke: line.colour, "stroke-width": 0.8, opacity: 0.45 }));
      for (const line of lines) {
        const style = { fill: "none", stroke: line.colour, "stroke-width": line.dashed ? 1.6 : 2.4, "stroke-linejoin": "round" };
        if (line.dashed) inside.append(svg("path", { ...style, "stroke-dasharray": "7 5", d: path(line.x, line.y, px, py) }));
        else {
          const whole = line.y.map((y, i) => (line.complete && !line.complete[i] ? null : y));
          inside.append(svg("path", { ...style, class: "curve", "data-label": line.label, d: path(line.x, whole, px, py) }));
          if (line.complete && line.complete.includes(false)) {
            const there = (i) => line.complete[i] !== false; // one point further on both sides joins the two parts
            const partial = line.y.map((y, i) => (there(i) && there(i - 1) && there(i + 1) ? null : y));
            inside.append(svg("path", { ...style, class: "gap", "stroke-dasharray": "1.5 4", "stroke-linecap": "round", d: path(line.x, partial, px, py) }));
          }
        }
      }
      if (wide && lines.length <= 16) names(root, px, py, x1, height - margin.bottom);
      const cursor = svg("g");
      root.append(cursor);
      box.querySelector("svg")?.remove();
      box.prepend(root);
      view = { width, height, px, py, x0, x1, y0, y1, cursor, margin };
    }

    const brief = (text) => (text.length > 17 ? `${text.slice(0, 16)}…` : text);

    function names(root, px, py, x1, bottom) {
      const ends = lines.filter((line) => !line.dashed).map((line) => {
        let last = line.y.length - 1;
        while (last > 0 && !known(line.y[last])) last--;
        return { line, y: py(line.y[last] ?? 0) + 4 };
      }).sort((a, b) => a.y - b.y);
      for (let i = 1; i < ends.length; i++) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + 15);
      for (let i = ends.length - 1, limit = bottom; i >= 0; i--, limit -= 15) ends[i].y = Math.min(ends[i].y, limit);
      for (const { line, y } of ends) {
        const text = svg("text", { class: "name", x: px(x1) + 8, y }, brief(line.short || line.label));
        text.style.fill = line.colour;
        root.append(text);
      }
    }

    function path(xs, ys, px, py) {
      let text = "", pen = false;
      xs.forEach((x, i) => {
        if (options.steps && pen && known(ys[i])) text += `H${px(x).toFixed(1)}`;
        if (!known(ys[i])) { pen = false; return; }
        const alone = !pen && !known(ys[i + 1]); // a single point is a dot
        text += `${pen ? "L" : "M"}${px(x).toFixed(1)} ${py(ys[i]).toFixed(1)}${alone ? "h0.01" : ""}`;
        pen = true;
      });
      return text;
    }

    function band(line, px, py) {
      const group = svg("g", { fill: line.colour, opacity: 0.16 });
      let run = [];
      const flush = () => {
        if (run.length > 1) {
          const edge = (values) => run.flatMap((i, n) => {
            const here = `${px(line.x[i]).toFixed(1)} ${py(values[i]).toFixed(1)}`;
            return options.steps && n ? [`${px(line.x[i]).toFixed(1)} ${py(values[run[n - 1]]).toFixed(1)}`, here] : [here];
          });
          group.append(svg("path", { d: `M${edge(line.high).join("L")}L${edge(line.low).reverse().join("L")}Z` }));
        }
        run = [];
      };
      line.x.forEach((_, i) => (known(line.low[i]) && known(line.high[i]) ? run.push(i) : flush()));
      flush();
      return group;
    }

    // Where a line is at x: its own nearest point, or between two points of the paper's sparse curves.
    function locate(line, x) {
      const points = line.x.map((_, i) => i).filter((i) => known(line.y[i]));
      if (line.dashed) {
        const next = points.findIndex((i) => line.x[i] >= x);
        if (next < 0 || (next === 0 && line.x[points[0]] > x)) return null;
        const [a, b] = [points[Math.max(next - 1, 0)], points[next]];
        const share = a === b ? 0 : (x - line.x[a]) / (line.x[b] - line.x[a]);
        return { line, i: b, x, y: line.y[a] + share * (line.y[b] - line.y[a]) };
      }
      if (!points.length) return null;
      const i = points.reduce((best, one) => (Math.abs(line.x[one] - x) < Math.abs(line.x[best] - x) ? one : best));
      const spacing = line.x.length > 1 ? (line.x[line.x.length - 1] - line.x[0]) / (line.x.length - 1) : Infinity;
      return Math.abs(line.x[i] - x) <= 1.01 * spacing ? { line, i, x: line.x[i], y: line.y[i] } : null;
    }

    function show(x) {
      if (!lines.length) return;
      if (!view) draw(); // keys may come before the first frame
      const guide = lines.find((line) => !line.dashed) || lines[0];
      const longest = lines.filter((line) => !line.dashed).reduce((a, b) => (b.x.length > a.x.length ? b : a), guide);
      let near = longest.x[0];
      for (const value of longest.x) if (Math.abs(value - x) < Math.abs(near - x)) near = value;
      at = near;
      const rows = lines.map((line) => locate(line, at)).filter(Boolean).sort((a, b) => b.y - a.y);
      view.cursor.replaceChildren(svg("line", { class: "cursor", x1: view.px(at), x2: view.px(at), y1: view.margin.top, y2: view.py(view.y0) }));
      for (const { line, x: where, y } of rows) {
        if (y > view.y1) continue;
        view.cursor.append(svg("circle", { cx: view.px(where), cy: view.py(y), r: 4, fill: line.dashed ? "#fff" : line.colour, stroke: line.dashed ? line.colour : "#fff", "stroke-width": 1.5 }));
      }
      const title = options.xTitle(at);
      tooltip.replaceChildren(el("b", {}, title), el("table", {}, el("tbody", {}, rows.map(({ line, i, y }) =>
        el("tr", {}, el("td", {}, key(line), line.label), el("td", {}, options.value(y)), el("td", {}, line.detail ? line.detail(i) : ""))))));
      tooltip.hidden = false;
      const left = view.px(at) * (box.clientWidth / view.width);
      const space = box.clientWidth - tooltip.offsetWidth;
      const beside = left + 14 <= space ? left + 14 : left - tooltip.offsetWidth - 14;
      tooltip.style.transform = `translate(${Math.max(0, Math.min(beside, space))}px, ${view.margin.top}px)`;
      spoken.textContent = `${title}: ${rows.map(({ line, y }) => `${line.label} ${options.value(y)}`).join(", ")}`;
    }

    function hide() { tooltip.hidden = true; at = null; view?.cursor.replaceChildren(); }

    function point(event) {
      if (!view) draw();
      const place = box.getBoundingClientRect();
      const inner = (event.clientX - place.left) * (view.width / place.width);
      const share = (inner - view.margin.left) / (view.width - view.margin.left - view.margin.right);
      show(view.x0 + Math.min(1, Math.max(0, share)) * (view.x1 - view.x0));
    }

    box.addEventListener("pointermove", point);
    box.addEventListener("pointerdown", point);
    box.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
    box.addEventListener("blur", hide);
    box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") hide();
      if (step === undefined) return;
      event.preventDefault();
      const xs = lines.filter((line) => !line.dashed).reduce((a, b) => (b.x.length > a.length ? b.x : a), []);
      const now = at === null ? (step > 0 ? -1 : xs.length) : xs.indexOf(at);
      show(xs[Math.min(xs.length - 1, Math.max(0, now + step))]);
    });
    box.append(tooltip, spoken);
    new ResizeObserver(() => { const keep = at; draw(); if (keep !== null) show(keep); }).observe(box);
    return box;
  }

  function key(line) {
    return el("span", { class: line.dashed ? "key dashed" : "key", style: `border-color:${line.colour}` });
  }

  // --- parts of the page ------------------------------------------------------------------------------------

  const env = () => data.environments[state.env];
  const kinds = () => ["evaluation", "training"].filter((kind) => env().series.some((one) => one.curves[kind]));
  const kindNames = { evaluation: "Evaluation", training: "Training" };

  // --- a sweep: which of its jobs are shown, and their colours ------------------------------------------------

  // Dark enough to read on white; by value, so that neighbours in a list of values look different.
  const palette = ["#0067A3", "#C04300", "#007A5A", "#A2407E", "#806000", "#3F3F3F", "#5B4FC4", "#00718A"];
  const shownSeries = () => env().series.filter((one) => Object.entries(one.values).every(([name, value]) => !state.hidden.has(`${name}=${value}`)));
  function tint(one) {
    const choice = env().choices.find((each) => each.name === state.by);
    const index = choice && one.values ? choice.values.indexOf(one.values[state.by]) : -1;
    return index < 0 ? one.colour : palette[index % palette.length];
  }

  // The pairs among the series shown.
  function pairs(found) {
    if (!found || !env().choices.length) return found;
    const shown = new Set(shownSeries().map((one) => one.label));
    const kept = found.labels.map((_, i) => i).filter((i) => shown.has(found.labels[i]));
    return kept.length < 2 ? null : { labels: kept.map((i) => found.labels[i]), cells: kept.map((i) => kept.map((j) => found.cells[i][j])) };
  }

  function filters() {
    if (!env().choices.length) return null;
    const box = (name, value) => el("label", {}, el("input", { type: "checkbox", id: `show-${name}-${value}`, checked: !state.hidden.has(`${name}=${value}`), onchange: () => {
      const key = `${name}=${value}`;
      state.hidden.has(key) ? state.hidden.delete(key) : state.hidden.add(key);
      update();
    } }), el("span", {}, value));
    return el("section", { class: "controls", id: "filters", "aria-label": "Settings shown" },
      env().choices.map(({ name, values }) => el("fieldset", {}, el("legend", {}, name), el("div", { class: "pills" }, values.map((value) => box(name, value))))),
      pills("by", "Colour by", [["", "curve"], ...env().choices.map(({ name }) => [name, name])], state.by || "", (value) => { state.by = value || null; update(); }));
  }

  function marginals() {
    if (!env().choices.length) return null;
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
    const rows = env().choices.flatMap(({ name, values }) => values.map((value, i) => {
      const own = shownSeries().filter((one) => one.values[name] === value && one.row.mean);
      const scores = own.map((one) => one.row.mean[0]).filter(known);
      const cells = scores.length ? [number(mean(scores)), number(Math.max(...scores))] : ["–", "–"];
      return el("tr", {}, el("th", { scope: "row" }, i ? "" : name), el("td", {}, value), el("td", {}, String(scores.length)), cells.map((text) => el("td", {}, text)));
    }));
    return el("section", { "aria-labelledby": "h-settings-scores" }, el("h2", { id: "h-settings-scores" }, `Scores by setting: ${env().name}`),
      el("div", { class: "scroll" }, el("table", { class: "data", id: "marginals" },
        el("thead", {}, el("tr", {}, ["Setting", "Value", "Combinations", "Mean", "Best"].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, rows))),
      el("p", { class: "soft" }, "For the combinations shown that have this value: the mean and the best of their mean final scores. A mean over combinations can mislead if settings interact: check the curves too."));
  }

  function pills(name, legend, choices, current, pick) {
    return el("fieldset", {}, el("legend", {}, legend), el("div", { class: "pills" }, choices.map(([value, text, disabled]) =>
      el("label", {}, el("input", { type: "radio", name, value, checked: value === current, disabled: !!disabled, onchange: () => pick(value) }),
        el("span", {}, text)))));
  }

  function toggle(id, text, on, flip) {
    return el("div", { class: "pills" }, el("label", {}, el("input", { type: "checkbox", id, checked: on, onchange: flip }), el("span", {}, text)));
  }

  function head() {
    const list = (items) => el("ul", {}, items.map((text) => el("li", {}, text)));
    const notes = (kind, title, items) => items.length
      ? el("section", { class: kind, "aria-label": title }, el("h2", {}, title), list(items.slice(0, 5)),
        items.length > 5 ? el("details", {}, el("summary", {}, `${items.length - 5} more`), list(items.slice(5))) : null) : null;
    return [
      el("h1", {}, data.title),
      el("p", { class: "soft" }, `${plural(data.runs, "run")}, ${plural(data.seeds, "seed")}. Made on ${data.made} with capo ${data.capo}.`),
      notes("notice", "Missing or damaged files", data.problems),
      notes("remark", "Before you compare", data.remarks),
    ];
  }

  function controls() {
    const available = kinds();
    if (!available.includes(state.kind)) state.kind = available[0];
    const paper = env().paper.length > 0;
    return el("div", { class: "controls" },
      data.environments.length > 1 ? pills("env", "Environment", data.environments.map((one, i) => [i, one.name]), state.env, choose) : null,
      pills("centre", "Line and band", [["iqm", `Interquartile mean, ${percent(data.level)} interval`], ["mean", "Mean ± 0.5 std"]],
        state.centre, (value) => { state.centre = value; redrawCurves(); }),
      available.length > 1 ? pills("kind", "Curves", available.map((kind) => [kind, kindNames[kind]]), state.kind, (value) => { state.kind = value; redrawCurves(); }) : null,
      el("fieldset", {}, el("legend", {}, "Also show"), el("div", { class: "pills" },
        toggle("seeds", "Individual seeds", state.seeds, () => { state.seeds = !state.seeds; redrawCurves(); }),
        paper ? toggle("paper", "Paper's curves", state.paper, () => { state.paper = !state.paper; redrawCurves(); }) : null)));
  }

  function choose(index) {
    state.env = Number(index);
    state.off.clear();
    state.hidden.clear();
    state.by = null;
    try { history.replaceState(null, "", `#${encodeURIComponent(env().name)}`); } catch { /* some viewers forbid it */ }
    update();
  }

  function curveLines() {
    const lines = [];
    for (const one of shownSeries()) {
      const curve = one.curves[state.kind];
      if (!curve) continue;
      const iqm = state.centre === "iqm";
      const middle = iqm ? curve.iqm : curve.mean;
      const low = iqm ? curve.low : curve.mean.map((m, i) => (known(m) ? m - 0.5 * curve.std[i] : null));
      const high = iqm ? curve.high : curve.mean.map((m, i) => (known(m) ? m + 0.5 * curve.std[i] : null));
      lines.push({
        label: one.label, short: env().choices.map(({ name }) => one.values[name]).filter(known).join(", "), colour: tint(one), x: curve.frames, y: middle, low, high,
        complete: curve.count.map((count) => count === curve.total),
        detail: (i) => `${range(low[i], high[i])}${curve.count[i] < curve.total ? `, ${curve.count[i]} of ${curve.total} seeds` : ""}`,
        seeds: state.seeds ? curve.seeds.map((seed) => seed.value) : null,
      });
    }
    if (state.paper) for (const one of env().paper) {
      const own = env().series.find((series) => series.algorithm === one.algorithm);
      lines.push({ label: one.label, colour: own ? own.colour : one.colour, dashed: true, x: one.frames, y: one.value });
    }
    return lines;
  }

  function redrawCurves() { document.getElementById("curves").replaceWith(curves()); }

  function curves() {
    const lines = curveLines();
    const legend = el("div", { class: "legend", role: "group", "aria-label": "Curves shown" });
    const place = el("div");
    const on = () => lines.filter((line) => !state.off.has(line.label));
    const redraw = () => place.replaceChildren(!on().length || !shownSeries().length ? el("p", { class: "soft" }, "No curve is chosen.") : chart(on(), {
      title: `Return on ${env().name} against frames`, xLabel: "frames", yLabel: state.kind === "evaluation" ? "evaluation return" : "training return",
      xText: frames, xTitle: (x) => `${frames(x)} frames`, value: number, height: 440, names: true, x0: 0,
    }));
    for (const line of lines) {
      const button = el("button", { type: "button", "aria-pressed": String(!state.off.has(line.label)), onclick: () => {
        state.off.has(line.label) ? state.off.delete(line.label) : state.off.add(line.label);
        button.setAttribute("aria-pressed", String(!state.off.has(line.label)));
        redraw();
      } }, key(line), line.label);
      legend.append(button);
    }
    redraw();
    const gaps = env().series.some((one) => { const c = one.curves[state.kind]; return c && c.count.some((n) => n < c.total); });
    const none = env().series.filter((one) => !one.curves[state.kind]).map((one) => one.label);
    return el("section", { id: "curves", "aria-labelledby": "h-curves" },
      el("h2", { id: "h-curves" }, `Learning curves: ${env().name}`), place, legend,
      el("p", { class: "soft" }, state.centre === "iqm"
        ? `Line: interquartile mean, the mean over the middle half of the seeds. Band: its pointwise ${percent(data.level)} bootstrap interval.`
        : "Line: mean over seeds. Band: plus and minus half a standard deviation over seeds, as in the paper; it is not a confidence interval.",
        gaps ? " Dotted: some seeds have no value there; the line shows the remaining ones." : "",
        state.paper && env().paper.length ? " Dashed: the paper's mean, read off its poster; it is heavily smoothed at the start." : ""),
      none.length ? el("p", { class: "soft" }, `No ${kindNames[state.kind].toLowerCase()} curve: ${none.join(", ")}.`) : null);
  }

  function estimate(cells, text = number) {
    if (!cells) return ["–"];
    return [text(cells[0]), " ", el("span", { class: "range" }, `[${text(cells[1])}, ${text(cells[2])}]`)];
  }

  function finalTable() {
    const paper = env().series.some((one) => known(one.row.paper));
    const cols = ["Seeds", "Frames", `IQM [${percent(data.level)}]`, `Mean [${percent(data.level)}]`, "Std", "Min, max", ...(paper ? ["Paper (10M)"] : [])];
    const cell = (i, ...content) => el("td", { "data-label": cols[i] }, el("span", {}, ...content));
    const best = (one) => (one.row.mean && known(one.row.mean[0]) ? one.row.mean[0] : -Infinity);
    const series = env().choices.length ? [...shownSeries()].sort((a, b) => best(b) - best(a)) : env().series; // a sweep: best first
    const rows = series.map((one) => {
      const row = one.row;
      return el("tr", {}, el("th", { scope: "row" }, el("span", {}, key({ ...one, colour: tint(one) }), one.label)),
        cell(0, row.finished === row.planned ? String(row.finished) : `${row.finished} of ${row.planned}`), cell(1, frames(row.frames)),
        cell(2, ...estimate(row.iqm)), cell(3, ...estimate(row.mean)), cell(4, number(row.std)),
        cell(5, row.finished ? `${number(row.min)}, ${number(row.max)}` : "–"), paper ? cell(6, number(row.paper)) : null);
    });
    for (const name of env().missing)
      rows.push(el("tr", {}, el("th", { scope: "row", class: "gap" }, el("span", {}, name)), el("td", { class: "gap", colspan: cols.length }, el("span", {}, "not run on this environment"))));
    const hows = new Map();
    for (const one of env().series) if (one.row.how) hows.set(one.row.how, [...(hows.get(one.row.how) || []), one.label]);
    const how = [...hows].map(([text, labels]) => el("p", { class: "soft" }, `${hows.size > 1 ? labels.join(", ") : "Scores"}: ${text}.`));
    return el("section", { "aria-labelledby": "h-final" },
      el("h2", { id: "h-final" }, `Final scores: ${env().name}`),
      el("div", { class: "scroll" }, el("table", { class: "data stack", id: "final" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Algorithm"), cols.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows))),
      how,
      el("p", { class: "soft" }, `A score is the mean return of one seed. IQM: interquartile mean over seeds. Intervals: percentile bootstrap over seeds with ${data.resamples} resamples; they are too narrow for fewer than five seeds.`));
  }

  function profile() {
    if (!env().profile.length) return null;
    const shown = new Map(shownSeries().map((one) => [one.label, tint(one)]));
    const lines = env().profile.filter((one) => shown.has(one.label)).map((one) => ({ ...one, colour: shown.get(one.label) })).map((one) => ({ label: one.label, colour: one.colour, x: one.score, y: one.share, low: one.low, high: one.high,
      detail: (i) => `${percent(one.low[i])} to ${percent(one.high[i])}` }));
    if (!lines.length) return null;
    return el("section", { "aria-labelledby": "h-profile" },
      el("h2", { id: "h-profile" }, `Performance profile: ${env().name}`),
      chart(lines, { title: `Share of seeds above a score on ${env().name}`, xLabel: "final score", yLabel: "seeds above the score", xText: (x) => String(Number(x.toPrecision(4))),
        yText: percent, xTitle: (x) => `score above ${number(x)}`, value: percent, height: 300, y: [0, 1], steps: true }),
      el("div", { class: "legend" }, lines.map((line) => el("span", { class: "entry" }, key(line), line.label))),
      el("p", { class: "soft" }, "Higher and further right is better. Where two curves cross, neither algorithm is better throughout."));
  }

  function improvementTable(found, id, title, note) {
    if (!found) return null;
    return el("section", { "aria-labelledby": id }, el("h2", { id }, title),
      el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": title }, el("table", { class: "data pairs" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Row beats column"), found.labels.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, found.cells.map((cells, i) => el("tr", {}, el("th", { scope: "row" }, found.labels[i]),
          cells.map((cell) => el("td", {}, ...(cell ? estimate(cell, percent) : ["–"])))))))),
      el("p", { class: "soft" }, note));
  }

  function protocol() {
    const lines = new Map(); // what -> how -> whose
    for (const one of env().series) for (const [what, how] of one.protocol) {
      if (!lines.has(what)) lines.set(what, new Map());
      lines.get(what).set(how, [...(lines.get(what).get(how) || []), one.label]);
    }
    return el("section", { "aria-labelledby": "h-protocol" }, el("h2", { id: "h-protocol" }, "How it was measured"),
      el("dl", { class: "facts" }, [...lines].sort().map(([what, hows]) => [el("dt", {}, what), [...hows].map(([how, labels]) =>
        el("dd", {}, labels.length === env().series.length ? null : el("b", {}, `${labels.join(", ")}: `), how))])));
  }

  function settings() {
    return el("section", { "aria-labelledby": "h-settings" }, el("h2", { id: "h-settings" }, "Settings and versions"),
      env().series.flatMap((one) => one.runs.map((run) => el("details", {}, el("summary", {}, one.label, " ", el("span", { class: "soft" }, run.path)),
        el("dl", { class: "facts" }, [["preset", run.preset], ["seeds", run.seeds.join(", ")], ["frames per seed", known(run.frames) ? run.frames.toLocaleString("en") : "unknown"], ...run.facts]
          .map(([what, value]) => [el("dt", {}, what), el("dd", {}, value)])),
        run.settings.length ? el("ul", { class: "settings" }, run.settings.map(([what, value]) => el("li", {}, el("b", {}, what), el("span", {}, value))))
          : el("p", { class: "soft" }, "Settings unknown: config.json is missing or damaged.")))));
  }

  function pictures() {
    const shown = env().series.flatMap((one) => one.runs.flatMap((run) => run.gifs.map((gif) => [one, run, gif])));
    const left = env().series.flatMap((one) => one.runs.flatMap((run) => run.gifs_left_out.map((name) => `${run.path}/${name}`)));
    if (!shown.length && !left.length) return null;
    return el("section", { "aria-labelledby": "h-gifs" }, el("h2", { id: "h-gifs" }, "Recorded episodes"),
      el("div", { class: "gifs" }, shown.map(([one, run, gif]) => el("figure", {}, el("img", { src: gif.url, alt: `${one.label} playing ${env().name}` }), el("figcaption", {}, `${one.label}: ${run.path}/${gif.name}`)))),
      left.length ? el("p", { class: "soft" }, `Too large for this page: ${left.join(", ")}`) : null);
  }

  function update() {
    const focus = document.activeElement;
    const again = focus && focus.name ? `input[name="${focus.name}"]:checked` : focus && focus.id ? `#${CSS.escape(focus.id)}` : null;
    const overall = data.overall;
    page.replaceChildren(...[
      ...head(), controls(), filters(), curves(), marginals(), finalTable(), profile(),
      improvementTable(pairs(env().improvement), "h-better", `Probability of improvement: ${env().name}`, "Probability that a seed of the row's algorithm scores higher than a seed of the column's; ties count half. Intervals: bootstrap over seeds."),
      overall ? improvementTable(overall, "h-overall", "Probability of improvement: across environments", `Averaged over ${overall.environments.join(", ")}; seeds are resampled within each environment.`) : null,
      pictures(), protocol(), settings(),
    ].filter(Boolean));
    if (again) page.querySelector(again)?.focus({ preventScroll: true });
  }

  const wanted = data.environments.findIndex((one) => `#${encodeURIComponent(one.name)}` === location.hash);
  if (wanted > 0) state.env = wanted;
  update();
})();
