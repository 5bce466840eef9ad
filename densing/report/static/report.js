"use strict";
// Draws the figures, sorts, filters and searches the tables and the models in the figures. Without this script every number is still on the page.
(() => {
  const text = (id) => document.getElementById(id).textContent;
  const palette = JSON.parse(text("palette"));
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const canHover = window.matchMedia("(hover: hover)").matches;
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const NARROW = 620;
  let printing = false;

  // What is packed (gzip in base 85, with a comma for its "<") the browser unpacks itself.
  const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
  const digit = new Uint8Array(128);
  [...DIGITS].forEach((letter, value) => { digit[letter.charCodeAt(0)] = value; });
  const unpacked = (id) => {
    const packed = text(id);
    const letters = packed.padEnd(Math.ceil(packed.length / 5) * 5, "~");
    const bytes = new DataView(new ArrayBuffer(letters.length / 5 * 4));
    for (let at = 0, to = 0; at < letters.length; to += 4) {
      let value = 0;
      for (const end = at + 5; at < end; at += 1) value = value * 85 + digit[letters.charCodeAt(at)];
      bytes.setUint32(to, value);
    }
    const whole = bytes.buffer.slice(0, Math.floor(packed.length * 4 / 5));
    return new Response(new Blob([whole]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const figures = {};

  // Figures name their colours once, for a light page; on a dark one each is exchanged by equality.
  const exchange = (value, colours) => {
    if (typeof value === "string") return colours[value] || value;
    if (Array.isArray(value)) return value.map((entry) => exchange(entry, colours));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, exchange(entry, colours)]));
    }
    return value;
  };

  const fit = (layout, data, width) => {
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    if (touch) layout.dragmode = false; // a finger on a figure scrolls the page
    if (width >= NARROW) return;
    layout.margin = { l: 44, r: 10, t: 10, b: 46 };
    layout.font.size = 12;
    const entries = data.filter((trace) => trace.name && trace.showlegend !== false);
    // The legend goes below. Of many entries each is short, so that they stand in columns: their whole names are on hover.
    if (entries.length > 6) {
      for (const trace of entries) if (trace.name.length > 16) trace.name = `${trace.name.slice(0, 15)}…`;
    }
    // One that does not fit in a row has columns as wide as its widest entry: about 6 pixels a
    // letter, and the mark.
    const wide = entries.map((trace) => trace.name.length * 6 + 45);
    const [total, room] = [wide.reduce((sum, each) => sum + each, 0), width - 54];
    const rows = total <= room ? 1 : Math.ceil(wide.length / Math.max(1, Math.floor(room / Math.max(...wide))));
    const inner = layout.height * 0.86;
    layout.height = inner + rows * 19;
    layout.annotations = (layout.annotations || []).filter((note) => note.name !== "wide");
    layout.legend = { ...layout.legend, font: { size: 11 }, y: -62 / (inner - 56), yanchor: "top" };
    // Words at the ends of bars take more of a narrow axis.
    if (data.some((trace) => trace.mode === "text")) layout.xaxis.range = layout.xaxis.range.map((end) => end * 1.3);
    for (const [name, axis] of Object.entries(layout)) {
      if (!/^[xy]axis/.test(name)) continue;
      axis.tickfont = { size: 11 };
      axis.title = { ...axis.title, font: { size: 12 }, standoff: 6 };
    }
  };

  // What is searched for stands out in every figure whose marks carry [searched text, label]; few matches are named.
  const NAMED = 6;
  let wanted = [];
  const highlight = (holder) => {
    const traces = holder.data || [];
    const marked = traces.flatMap((trace, index) => (trace.customdata && trace.mode === "markers" ? [index] : []));
    const shown = holder.layout.meta || {};
    if (!marked.length || (!wanted.length && !shown.searched)) return Promise.resolve();
    const escaped = wanted.map((word) => word.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;"));
    const hits = marked.map((index) => traces[index].customdata.flatMap(
      ([text], point) => (escaped.every((word) => text.includes(word)) ? [point] : [])));
    const own = (holder.layout.annotations || []).filter((note) => note.name !== "match");
    const notes = [];
    if (wanted.length && hits.flat().length <= NAMED) {
      marked.forEach((index, at) => hits[at].forEach((point) => {
        const trace = traces[index];
        notes.push({
          x: holder.layout.xaxis.type === "log" ? Math.log10(trace.x[point]) : trace.x[point], y: Math.log10(trace.y[point]), text: trace.customdata[point][1], name: "match",
          showarrow: true, arrowhead: 0, arrowwidth: 1, ax: 0, ay: -28, font: { size: 13 },
          bgcolor: getComputedStyle(document.body).backgroundColor, arrowcolor: getComputedStyle(document.body).color,
        });
      }));
    }
    own.forEach((note) => { note.visible = !wanted.length; });
    const update = {
      selectedpoints: hits.map((points) => (wanted.length ? points : null)),
      "unselected.marker.opacity": wanted.length ? 0.1 : null,
    };
    return window.Plotly.restyle(holder, update, marked)
      .then(() => window.Plotly.relayout(holder, { annotations: [...own, ...notes], meta: { searched: wanted.length > 0 } }));
  };

  const widthOf = (holder) => (printing ? 680 : holder.clientWidth);

  const draw = (holder) => {
    const width = widthOf(holder);
    if (!width) return Promise.resolve();
    const { data, layout } = JSON.parse(figures[holder.id]);
    const dark = prefersDark.matches && !printing;
    const colours = dark ? palette : {};
    fit(layout, data, width);
    layout.width = width;
    layout.autosize = false;
    holder.dataset.width = width;
    holder.style.minHeight = `${layout.height}px`;
    const config = {
      displaylogo: false,
      displayModeBar: touch || printing || !canHover ? false : "hover",
      modeBarButtons: [["toImage", "resetScale2d"]],
    };
    return window.Plotly.react(holder, exchange(data, colours), exchange(layout, colours), config).then(() => {
      holder.dataset.drawn = "true";
      return highlight(holder);
    });
  };

  const holders = [...document.querySelectorAll(".plot")];
  const drawn = () => holders.filter((holder) => holder.dataset.drawn);
  const redraw = () => drawn().forEach(draw);

  // Sorting: numbers by value, text by locale, empty cells last in both directions. A cell without a key shows it,
  // a number as page.py's `_SHOWN` has it: "≤ 0.23", "258 M to 8.88 B", "0.43 ± 0.05".
  const UNITS = { M: 1e6, B: 1e9, T: 1e12, "%": 0.01 };
  const read = (shown) => {
    const [, number, unit] = shown.match(/^(?:[≤≥] )?(−?\d+(?:\.\d+)?)(?: ([MBT%]))?(?: (?:to|±) .*)?$/) || [];
    return number ? Number(number.replace("−", "-")) * (UNITS[unit] || 1) : "";
  };
  const compare = (numeric) => (a, b) =>
    numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });

  const sort = (table, index, direction) => {
    const header = table.tHead.rows[0].cells[index];
    const numeric = header.dataset.type === "number";
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[index];
      const shown = cell.textContent.trim();
      return cell.dataset.key ?? (numeric ? read(shown) : shown.toLowerCase());
    };
    const rows = [...body.rows];
    const order = compare(numeric);
    const full = rows.filter((row) => key(row) !== "").sort((a, b) => order(key(a), key(b)) * direction);
    body.append(...full, ...rows.filter((row) => key(row) === ""));
    for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  };

  const makeSortable = (table) => {
    [...table.tHead.rows[0].cells].forEach((header, index) => {
      const button = header.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const now = header.getAttribute("aria-sort");
        const first = header.dataset.type === "number" ? -1 : 1;
        const direction = now === null ? first : now === "ascending" ? -1 : 1;
        sort(table, index, direction);
      });
    });
  };

  const split = (text) => text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const search = (text) => {
    wanted = split(text);
    drawn().forEach(highlight);
  };

  const makeFilterable = (bar) => {
    const table = document.getElementById(bar.dataset.table);
    const words = bar.querySelector("input");
    const choices = [...bar.querySelectorAll("select")];
    const count = bar.querySelector("output");
    const rows = [...table.tBodies[0].rows];
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const finders = [words, ...document.querySelectorAll(`input[data-finds="${bar.dataset.table}"]`)];
    const apply = () => {
      const wanted = split(words.value);
      let kept = 0;
      for (const row of rows) {
        const chosen = choices.every((box) => !box.value || row.cells[box.dataset.column].textContent.trim() === box.value);
        row.hidden = !(chosen && wanted.every((word) => texts.get(row).includes(word)));
        if (!row.hidden) kept += 1;
      }
      count.textContent = `${kept} of ${rows.length} ${count.dataset.of}`;
    };
    // One search, wherever it is typed: beside a figure or above the table.
    let typing = 0;
    finders.forEach((finder) => finder.addEventListener("input", () => {
      finders.forEach((other) => { if (other !== finder) other.value = finder.value; });
      apply();
      if (finders.length > 1) {
        window.clearTimeout(typing);
        typing = window.setTimeout(() => search(finder.value), 80);
      }
    }));
    finders.slice(1).forEach((finder) => { finder.closest(".find").hidden = false; });
    choices.forEach((box) => box.addEventListener("change", apply));
    bar.hidden = false;
    apply();
  };

  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll(".filters").forEach(makeFilterable);

  // What a link leads to is opened, and whatever it lies in.
  const reveal = (hash) => {
    const target = document.getElementById(decodeURIComponent(hash.slice(1)));
    const own = target && target.querySelector(":scope > details");
    for (let part = own || target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) reveal(link.hash);
  });
  reveal(window.location.hash);

  // A figure is drawn when it comes near the screen, and again when its width changes, when the page turns dark, and around printing.
  const near = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => {
      near.unobserve(target);
      draw(target).then(() => watcher.observe(target));
    });
  }, { rootMargin: "600px 0px" });
  let waiting = 0;
  const watcher = new ResizeObserver((entries) => {
    const changed = entries.some((entry) => Number(entry.target.dataset.width) !== entry.target.clientWidth);
    if (!changed || printing) return;
    window.clearTimeout(waiting);
    waiting = window.setTimeout(redraw, 120);
  });
  const follow = () => {
    prefersDark.addEventListener("change", redraw);
    window.addEventListener("beforeprint", () => {
      printing = true;
      holders.forEach(draw);
    });
    window.addEventListener("afterprint", () => {
      printing = false;
      redraw();
    });
    holders.forEach((holder) => near.observe(holder));
  };

  const start = async () => {
    if (holders.length) {
      const code = document.createElement("script"); // the page's policy knows its hash
      code.textContent = await unpacked("plotly");
      document.head.append(code);
      await Promise.all(holders.map(async ({ id }) => { figures[id] = await unpacked(`data-${id}`); }));
      await Promise.all(holders.filter((holder) => holder.getBoundingClientRect().top < window.innerHeight).map(draw));
    }
    follow();
  };
  start().catch((error) => {
    console.error(error);
    document.documentElement.classList.add("undrawn");
    document.getElementById("undrawn").hidden = false;
  }).then(() => {
    performance.mark("drawn");
    document.documentElement.dataset.ready = "true";
  });
})();
