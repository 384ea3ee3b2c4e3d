// Draws the JSON block of the page.  No library, nothing from a network.
"use strict";
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const dash = "–";

  // --- numbers as people read them ---------------------------------------------------------------

  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
  const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : dash);
  const decimals = (value, digits) =>
    known(value)
      ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })
      : dash;
  const figures = (value, digits = 4) => {
    if (!known(value)) return dash;
    if (value === 0) return "0";
    const before = Math.floor(Math.log10(Math.abs(value))) + 1;
    return before < -2 ? value.toExponential(digits - 1) : decimals(value, Math.max(0, digits - before));
  };
  const percent = (share, digits) =>
    known(share) ? decimals(100 * share, digits ?? (Math.abs(share) < 1 ? 1 : 0)) + " %" : dash;
  const count = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
  const tokens = (number) => {
    for (const [unit, size] of [["M", 2 ** 20], ["K", 2 ** 10]]) {
      if (number >= size && number % size === 0) return number / size + unit;
    }
    return whole(number);
  };
  const bytes = (number) => {
    if (!known(number)) return dash;
    let unit = 0;
    for (; Math.abs(number) >= 1024 && unit < 4; ++unit) number /= 1024;
    return `${decimals(number, unit ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  };
  const sum = (values) => values.reduce((all, value) => all + (known(value) ? value : 0), 0);
  const mean = (values) => (values.length ? sum(values) / values.length : NaN);

  // --- elements ----------------------------------------------------------------------------------

  const fill = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (known(value) || typeof value === "string") element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };
  const el = (tag, attributes = {}, ...children) =>
    fill(document.createElement(tag), attributes, children);
  const shape = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const at = (id) => document.getElementById(id);

  // A copy of a template with the values in their places; what has no value is left out.
  const filled = (id, values) => {
    const copy = document.importNode(at(id).content, true);
    for (const one of copy.querySelectorAll("[data-if]")) {
      const value = values[one.dataset.if];
      if (value === undefined || value === null || value === false) one.remove();
    }
    for (const one of copy.querySelectorAll("[data-v]")) one.textContent = values[one.dataset.v] ?? dash;
    return copy;
  };

  // `head`: rows of [text, attributes]; `body`: rows of cells, the first a row's head.  A cell: a
  // text, an element, or {text, style, small}.
  const table = (element, head, body) => {
    const cell = (tag, content, attributes = {}) => {
      const { text, style, small } =
        content !== null && typeof content === "object" && !(content instanceof Node)
          ? content : { text: content };
      return el(tag, { class: style, ...attributes }, text ?? dash,
        small ? el("small", {}, " " + small) : null);
    };
    element.replaceChildren(
      el("thead", {}, ...head.map((row) => el("tr", {}, ...row.map(
        ([text, attributes]) => el("th", { scope: "col", ...attributes }, text))))),
      el("tbody", {}, ...body.map(({ style, cells }) => el("tr", { class: style },
        cell("th", cells[0], { scope: "row" }), ...cells.slice(1).map((one) => cell("td", one))))));
    return element;
  };

  // --- charts ------------------------------------------------------------------------------------

  const drawn = [];  // again when the window has another width
  const draw = (element, paint) => {
    const again = () => element.replaceChildren(
      ...paint(Math.max(260, Math.min(1000, element.clientWidth))));
    drawn.push(again);
    again();
    return again;
  };
  let seen = 0;
  addEventListener("resize", () => {
    if (document.body.clientWidth !== seen) {
      seen = document.body.clientWidth;
      drawn.forEach((again) => again());
    }
  });

  const linearTicks = (low, high, most) => {
    const rough = (high - low) / most;
    if (!(rough > 0)) return [low];
    const decade = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((round) => round * decade >= rough * 0.75) * decade;
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12); ++i) ticks.push(i * step || 0);
    return ticks;
  };
  // With as many decimals as tell ticks apart.
  const tickText = (tick, ticks) => {
    const step = ticks.length > 1 ? Math.min(ticks[1] - ticks[0], tick || Infinity) : tick / 10 || 1;
    return decimals(tick, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  };

  // Lines over x.  `x`, `y`: {label, text, zero, tick, unit}; a line: {name, style, points: [[x, y]], dots}.
  //  A point without a y breaks its line.  Names stand beside the lines, on narrow screens
  // below; moving over the chart reads the values.
  const lineChart = (element, { label, lines, x, y, height = 260 }) => {
    lines = lines.filter((line) => line.points.some((point) => known(point[1])));
    if (!lines.length) return;
    draw(element, (width) => {
      const wide = width > 640;
      const box = { left: 62, right: width - (wide ? 190 : 10), top: 26, bottom: 0 };
      const tall = Math.max(height, wide ? 90 + 17 * lines.length : 0);
      box.bottom = tall - 44;
      const points = lines.flatMap((line) => line.points.filter((point) => known(point[1])));
      const axis = (part, { zero }, from, to) => {
        let low = zero ? 0 : Infinity;
        let high = -Infinity;
        for (const point of points) {
          low = Math.min(low, point[part]);
          high = Math.max(high, point[part]);
        }
        const margin = (high - low) * 0.03 || Math.max(1e-9, Math.abs(high) / 2);
        if (!zero) low -= part === 0 ? 0 : margin;
        high += part === 0 && high > low ? 0 : margin;
        return {
          low, high,
          at: (value) => from + ((value - low) / (high - low)) * (to - from),
          value: (place) => low + ((place - from) / (to - from)) * (high - low),
        };
      };
      const xs = axis(0, x, box.left, box.right);
      const ys = axis(1, y, box.bottom, box.top);
      const parts = [];
      const line = (style, x1, y1, x2, y2) => shape("line", { class: style, x1, y1, x2, y2 });
      const words = (style, left, top, text) => shape("text", { class: style, x: left, y: top }, text);
      const unit = y.unit?.(ys.high) ?? 1;
      const yTicks = linearTicks(ys.low / unit, ys.high / unit, 5).map((tick) => tick * unit);
      for (const tick of yTicks) {
        parts.push(line("grid", box.left, ys.at(tick), box.right, ys.at(tick)),
          words("tick end", box.left - 7, ys.at(tick) + 4, (y.tick ?? tickText)(tick, yTicks)));
      }
      const xTicks = linearTicks(xs.low, xs.high, wide ? 10 : 5).filter(Number.isInteger);
      for (const tick of xTicks) {
        parts.push(line("grid", xs.at(tick), box.top, xs.at(tick), box.bottom),
          words("tick middle", xs.at(tick), box.bottom + 17, x.text(tick)));
      }
      parts.push(line("axis", box.left, box.bottom, box.right, box.bottom),
        words("label", 2, 14, y.label),
        words("label middle", (box.left + box.right) / 2, tall - 8, x.label));
      for (const one of lines) {
        const group = shape("g", { class: "line " + one.style }, shape("title", {}, one.name));
        let run = [];
        const end = () => {
          if (run.length > 1) group.append(shape("polyline", { points: run.join(" ") }));
          else if (run.length) one.dots ??= 2.5;
          run = [];
        };
        for (const [px, py] of one.points) {
          if (known(py)) run.push(`${xs.at(px).toFixed(1)},${ys.at(py).toFixed(1)}`);
          else end();
        }
        end();
        for (const [px, py] of one.dots ? one.points : []) {
          if (known(py)) group.append(shape("circle", { cx: xs.at(px), cy: ys.at(py), r: one.dots }));
        }
        parts.push(group);
      }
      const legend = [];
      if (wide) {  // each name as near to the end of its line as the others let it
        const names = lines.map((one) => {
          const last = one.points.findLast((point) => known(point[1]));
          return { one, x: xs.at(last[0]), end: ys.at(last[1]), y: ys.at(last[1]) };
        }).sort((a, b) => a.end - b.end);
        names.forEach((name, i) => { if (i) name.y = Math.max(name.y, names[i - 1].y + 17); });
        for (let i = names.length - 1, room = box.bottom; i >= 0; --i, room -= 17) {
          room = names[i].y = Math.min(names[i].y, room);
        }
        for (const { one, x: ex, end, y: top } of names) {
          const left = box.right + 14;
          const short = one.name.length > 22 ? one.name.slice(0, 21) + "…" : one.name;
          parts.push(shape("g", { class: "line " + one.style },
            box.right - ex < 20 ? line("leader", ex + 4, end, left - 2, top) : null,
            line("sample", left, top, left + 20, top)),
            words("name", left + 26, top + 4, short));
        }
      } else {
        legend.push(el("p", { class: "legend" }, ...lines.map((one) => el("span", {},
          shape("svg", { viewBox: "0 0 20 8", class: "key" },
            shape("g", { class: "line " + one.style }, line("sample", 0, 4, 20, 4))),
          one.name))));
      }
      const cursor = line("cursor", 0, box.top, 0, box.bottom);
      const reading = el("p", { class: "reading note" }, " ");
      const svg = shape("svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${tall}`,
        width, height: tall }, ...parts, cursor);
      svg.addEventListener("pointermove", (event) => {
        const value = xs.value(event.offsetX);
        const far = (point) => Math.abs(xs.at(point[0]) - event.offsetX);
        let nearest = points[0];
        for (const point of points) if (far(point) < far(nearest)) nearest = point;
        if (!known(value)) return;
        const place = xs.at(nearest[0]);
        fill(cursor, { x1: place, x2: place, class: "cursor on" }, []);
        reading.textContent = `${x.name ?? x.label} ${x.text(nearest[0])}: ` + lines.flatMap((one) => {
          const here = one.points.find((point) => point[0] === nearest[0] && known(point[1]));
          return here ? [`${one.name} ${y.text(here[1])}`] : [];
        }).join("; ");
      });
      return [svg, ...legend, reading];
    });
  };

  // --- a training run ----------------------------------------------------------------------------

  const stepAxis = { label: "step", text: whole };
  const documentsText = (number) => count(number, data.samples ? "sample" : "document");
  const runsOf = (ranks) => {  // [first, last] of ranks in a row
    const runs = [];
    for (const rank of ranks) {
      if (runs.length && runs.at(-1)[1] === rank - 1) runs.at(-1)[1] = rank;
      else runs.push([rank, rank]);
    }
    return runs;
  };
  const ranksText = (ranks) =>
    runsOf(ranks).map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");

  // Documents by the power of two of their length and by the size of their group.
  const showLengths = () => {
    const rows = new Map();
    const sizes = new Set();
    for (const plan of data.plans) {
      for (const group of plan.micro_batches.flat()) {
        if (group.documents.length) sizes.add(group.ranks.length);
        for (const d of group.documents) {
          const low = 2 ** Math.floor(Math.log2(plan.lengths[d]));
          if (!rows.has(low)) rows.set(low, new Map());
          const row = rows.get(low);
          row.set(group.ranks.length, (row.get(group.ranks.length) ?? 0) + 1);
        }
      }
    }
    const columns = [...sizes].sort((a, b) => a - b);
    table(at("lengths-table"),
      [[["length"], [data.samples ? "samples" : "documents"], ...columns.map((size) => [count(size, "rank")])]],
      [...rows].sort((a, b) => a[0] - b[0]).map(([low, row]) => {
        const all = sum([...row.values()]);
        return { cells: [`${tokens(low)}–${tokens(2 * low)}`, whole(all), ...columns.map((size) => {
          const share = (row.get(size) ?? 0) / all;
          return row.has(size)
            ? el("span", {}, percent(share, 0) + " ", el("span", { class: "share", "aria-hidden": "true" },
              el("span", { style: `width:${(100 * share).toFixed(1)}%` })))
            : "";
        })] };
      }));
  };

  const dimsText = (dims) => Object.entries(dims).map(([dim, size]) => `${dim} ${whole(size)}`).join(", ");

  const showSizes = () => {
    const { memory_per_rank: memory, sizes } = data.sizes;
    const fits = (one) => one.fits;
    table(at("sizes-table"),
      [[[data.samples ? "rows" : "tokens"], ...sizes.map((size) => [count(size.ranks, "rank")])]],
      sizes[0].by_length.map(({ tokens: length, dims }, i) => {
        const row = sizes.map((size) => size.by_length[i]);
        const best = Math.min(...row.filter(fits).map((one) => one.seconds));
        const name = dims ? { text: whole(length), small: dimsText(dims) } : whole(length);
        return { cells: [name, ...row.map((one) => fits(one)
          ? { text: el(one.seconds === best ? "b" : "span", { title: one.program }, `${figures(one.seconds, 3)} s`),
              small: bytes(one.peak_bytes) }
          : { text: `needs ${bytes(one.peak_bytes)}`, style: "no" })] };
      }));
    at("why").textContent = sizes.filter((size) => known(size.longest)).map((size) =>
      `${size.ranks === 1 ? "One rank" : `A group of ${size.ranks} ranks`} holds a document of up to ` +
      `${whole(size.longest)} tokens within ${bytes(memory)} a rank.`).join(" ");
  };

  // Ranks over time: what each group took in each micro-batch, and what its ranks waited.
  const seconds = (group) => group.seconds ?? group.predicted ?? 0;
  const stepChart = (plan, width) => {
    const left = 52;
    const top = 24;
    const row = Math.max(6, Math.min(26, 420 / data.ranks));
    const tall = top + row * data.ranks + 34;
    const lasts = (micro) => Math.max(1e-9, ...micro.map(seconds));
    const total = sum(plan.micro_batches.map(lasts));
    const right = width - 52;
    const scale = (right - left) / total;
    const words = (style, x, y, text) => shape("text", { class: style, x, y }, text);
    const parts = [];
    let x = left;
    plan.micro_batches.forEach((micro, m) => {
      const wide = lasts(micro) * scale;
      for (const group of micro) {
        const own = seconds(group) * scale;
        const documents = group.documents.length;
        const said = `micro-batch ${m + 1}, ${group.ranks.length > 1 ? "ranks" : "rank"} ` +
          `${ranksText(group.ranks)}: ${documentsText(documents)}, ${figures(seconds(group), 3)} s, ${group.program}`;
        for (const [first, last] of runsOf(group.ranks)) {
          const place = { y: top + row * first + 1, height: row * (last - first + 1) - 2 };
          parts.push(
            shape("rect", { class: "idle", x: x + own, width: Math.max(0, wide - own - 1), ...place }),
            shape("rect", { class: `group c${documents ? (group.ranks.length > 1 ? 0 : 2) : 7}`,
              x, width: Math.max(0.5, own - 1), ...place }, shape("title", {}, said)));
          if (own > 64 && place.height > 13 && documents) {
            parts.push(words("boxed", x + 6, place.y + place.height / 2 + 4,
              own > 100 ? documentsText(documents) : `${documents} doc.`));
          }
        }
      }
      x += wide;
    });
    for (let rank = 0; rank < data.ranks; rank += Math.ceil(14 / row)) {
      const y = top + row * rank + Math.min(row, 14) / 2 + 5;
      parts.push(words("tick end", left - 7, y, `${rank}`),
        words("tick end", width - 2, y, percent(plan.idle[rank], 0)));
    }
    const ticks = linearTicks(0, total, width > 640 ? 8 : 3);
    for (const tick of ticks) {
      parts.push(words("tick middle", left + tick * scale, tall - 18, tickText(tick, ticks)));
    }
    return [shape("svg", { role: "img", "aria-label": `Groups of step ${plan.step}`,
      viewBox: `0 0 ${width} ${tall}`, width, height: tall }, ...parts, words("label", 2, 14, "rank"),
    words("label end", width - 2, 14, "idle"),
    words("label middle", (left + right) / 2, tall - 3, "seconds"))];
  };

  const stepTable = (plan) => {
    at("step-text").textContent = [documentsText(plan.lengths.length),
      `${whole(sum(plan.lengths))} ${data.samples ? "rows" : "tokens"}`,
      `the longest has ${whole(Math.max(...plan.lengths))}`,
      `${plan.micro_batches.length} micro-batch${plan.micro_batches.length > 1 ? "es" : ""}`,
      `predicted ${figures(plan.predicted, 3)} s, took ${figures(plan.seconds, 3)} s`,
      `planner ${plan.planner}`].join(", ") + (plan.late ? "; its plan was late" : "") + ".";
    table(at("groups-table"), [[["micro-batch"], ["ranks"], [data.samples ? "samples" : "documents"],
      [data.samples ? "rows" : "tokens"], ["longest"], ["predicted s"], ["took s"], ["predicted memory"],
      ["program", { class: "text" }]]],
    plan.micro_batches.slice(0, 100).flatMap((micro, m) => micro.map((group) => {
      const lengths = group.documents.map((d) => plan.lengths[d]);
      return { cells: [`${m + 1}`, ranksText(group.ranks), whole(lengths.length), whole(sum(lengths)),
        lengths.length ? whole(Math.max(...lengths)) : dash, figures(group.predicted, 3),
        figures(group.seconds, 3), bytes(group.bytes), { text: group.program, style: "text wide" }] };
    })));
  };

  const showSteps = () => {
    const select = at("step-select");
    const range = at("step-range");
    select.append(...data.plans.map((plan, i) => el("option", { value: `${i}` }, whole(plan.step))));
    range.max = data.plans.length - 1;
    range.hidden = data.plans.length < 2;
    let chosen = data.plans[data.first];
    const again = draw(at("step-chart"), (width) => stepChart(chosen, width));
    const choose = (i) => {
      chosen = data.plans[i];
      select.value = range.value = i;
      again();
      stepTable(chosen);
    };
    select.addEventListener("change", () => choose(+select.value));
    range.addEventListener("input", () => choose(+range.value));
    choose(data.plans.indexOf(chosen));
  };

  const showRun = () => {
    const s = data.steps;
    const n = s.step.length;
    const column = (values) => s.step.map((step, i) => [step, values[i]]);
    const all = data.totals;
    const budget = s.memory_per_rank.findLast(known);
    const documents = sum(data.plans.map((plan) => plan.lengths.length));
    const st = data.best_static;
    const some = (number, text) => (number ? text : null);
    const losses = s.loss.filter(known);
    const last = Math.min(20, Math.floor(n / 10));  // steps of a mean
    const values = {
      loss: losses.length ? `${decimals(losses[0], 4)} in the first step, ${decimals(losses.at(-1), 4)} in the last` : null,
      smooth: last > 1 ? `${last}` : null,
      eval: known(data.eval_loss) ? decimals(data.eval_loss, 4) : null,
      speed: n ? whole(all.tokens / all.seconds) : null,
      steps: count(all.steps, "step"), tokens: whole(all.tokens), seconds: figures(all.seconds),
      idle: n ? percent(all.idle_share) : null,
      late: some(all.late, count(all.late, "step") + (all.late === 1 ? " was" : " were")),
      retries: some(all.retried, count(all.retried, "step")),
      off: all.predicted_seconds ? decimals(1 + all.error, 2) : null, ratio: decimals(all.ratio, 2),
      predicted: figures(all.predicted_seconds),
      off_sum: percent(all.predicted_seconds / all.seconds, 0),
      budget: budget ? bytes(budget) : null, no_budget: !budget,
      peak: bytes(all.peak_bytes), peak_share: percent(all.peak_bytes / budget, 0),
      plans: data.plans.length > 0 || null, documents: documentsText(documents),
      planned_steps: data.plans.length < all.steps ? `${whole(data.plans.length)} of ${count(all.steps, "step")}` : `all ${count(all.steps, "step")}`,
      samples: data.samples, sizes: data.sizes, no_sizes: !data.sizes,
      no_groups: data.plans.some((plan) => plan.micro_batches.some((micro) => micro.some((group) => !known(group.seconds)))),
      static: st?.strategy, no_static: st ? null : data.no_static,
      static_steps: st && count(st.steps, "step"), static_seconds: st && figures(st.seconds, 3),
      static_ours: st && figures(st.ours, 3), static_ratio: st && `${decimals(st.ratio, 2)} times`,
      static_measured: st && decimals(all.ratio, 2), static_error: st && decimals(1 + all.error, 2),
      static_verdict: st && (st.within_error ? "which of the two is faster is not known"
        : st.ratio > 1 ? "these plans are faster" : "the static strategy is faster"),
      compared: data.compared, beside: data.beside.length || null,
    };
    document.title = `ParaDySe: ${data.name}`;
    at("title").textContent = `Training run ${data.name}`;
    at("main").append(filled("run", values));
    at("notes").append(...data.notes.map((one) => el("li", {}, one)));
    if (n) {
      if (values.loss) {
        const smooth = s.step.map((step, i) => {
          const window = s.loss.slice(Math.max(0, i + 1 - last), i + 1).filter(known);
          return [step, window.length ? mean(window) : null];
        });
        lineChart(at("loss-chart"), { label: "Loss of each step", x: stepAxis,
          y: { label: "loss", text: (value) => decimals(value, 4) }, lines: [
            { name: "each step", style: "c5 thin", points: column(s.loss) },
            ...(last > 1 ? [{ name: `mean of ${last} steps`, style: "c0 thick", points: smooth }] : []),
            ...(known(data.eval_loss) ? [{ name: "held-out", style: "c1", points: [[s.step.at(-1), data.eval_loss]], dots: 4 }] : [])] });
      }
      lineChart(at("speed-chart"), { label: "Tokens per second of each step", x: stepAxis,
        y: { label: "tokens/s", text: whole, zero: true }, lines: [
          { name: "this run", style: "c0", points: s.step.map((step, i) => [step, s.tokens[i] / s.seconds[i]]) },
          ...data.beside.map((other, i) => ({ name: other.name, style: `c${i + 1}`,
            points: other.step.map((step, k) => [step, other.tokens[k] / other.seconds[k]]) }))] });
      lineChart(at("time-chart"), { label: "Seconds of each step, predicted and measured", x: stepAxis,
        y: { label: "seconds", text: (value) => figures(value, 3), zero: true }, lines: [
          { name: "measured", style: "c0", points: column(s.seconds) },
          { name: "predicted", style: "c1 dashed", points: column(s.predicted_seconds) }] });
      lineChart(at("memory-chart"), { label: "Peak memory of each step", x: stepAxis,
        y: { label: "memory", text: bytes, tick: bytes, unit: (most) => 1024 ** Math.floor(Math.log2(most) / 10), zero: true }, lines: [
          { name: "measured peak", style: "c0", points: column(s.peak_bytes) },
          { name: "predicted peak", style: "c1 dashed", points: column(s.predicted_peak_bytes.map((one) => one || null)) },
          { name: "budget", style: "ink dotted", points: column(s.memory_per_rank.map((one) => one || null)) }] });
    }
    if (values.plans) {
      showLengths();
      if (data.sizes) showSizes();
      showSteps();
    }
    if (data.beside.length) {
      table(at("beside-table"), [[["run"], ["common steps"], ["seconds"], ["this run"], ["times"], ["last loss"]]],
        data.beside.map((other) => {
          const { steps, own, its } = other.both;
          return { cells: [other.name, whole(steps), figures(its), figures(own),
            steps ? decimals(its / own, 2) : dash, decimals(other.loss.findLast(known), 4)] };
        }));
    }
  };

  // --- the page ----------------------------------------------------------------------------------

  at("facts").append(...Object.entries(data.facts).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value || dash)]));
  at("state").textContent = data.state;
  at("command").textContent = data.command;
  showRun();
  at("contents").append(...[...document.querySelectorAll("main h2")].map((heading) =>
    el("li", {}, el("a", { href: `#${heading.id}` }, heading.textContent))));
}
