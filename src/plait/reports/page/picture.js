// The timeline: what Bokeh is given to draw, and how the window over it moves.
"use strict";

plait.MOST_CORNERS = 800; // of the line of a critical path: more can not be followed
plait.LAYERS = ["drawn", "critical", "path", "letters", "chosen"];
plait.SIDES = ["left", "right", "top", "bottom", "sort"];

plait.makePicture = async function (data, timelines, target) {
  const views = await Bokeh.embed.embed_item(data.items.timeline, target);
  return new plait.Picture(data, timelines, views.roots[0]);
};

plait.Picture = class {
  constructor(data, timelines, view) {
    const { geometry, words } = data, plot = view.model;
    Object.assign(this, { data, timelines, view, plot, geometry, words });
    const index = (name) => words.sort_names.indexOf(name);
    this.codes = { exchange: index("exchange"), wait: index("wait"), count: words.sort_names.length };
    this.rounds = timelines.some(({ round }) => round.some((number) => number !== round[0]));
    this.whole = [plot.x_range.start, plot.x_range.end];
    this.source = Object.fromEntries(plait.LAYERS.map((name) => [name, this.named(name)]));
    this.glyph = Object.fromEntries(plait.LAYERS.map((name) => [name, this.named(`${name}-glyphs`).glyph]));
    this.state = { path: false, chosen: null, row: -1, last: "", cell: 0, draws: 0, rectangles: 0, letters: 0 };
    for (const range of [plot.x_range, plot.y_range]) {
      for (const name of ["start", "end"]) range.properties[name].change.connect(() => this.draw());
    }
    plot.properties.inner_width.change.connect(() => this.fit());
    plait.letScroll(view);
  }

  named(name) {
    return this.plot.document.get_model_by_name(name);
  }

  get pixels() {
    return Math.max(100, this.view.frame.bbox.width);
  }

  // What is seen: seconds, and heights in lines.
  get seen() {
    const { x_range, y_range } = this.plot;
    const low = Math.min(y_range.start, y_range.end), high = Math.max(y_range.start, y_range.end);
    return { start: x_range.start, end: x_range.end, low, high, pixels: this.pixels };
  }

  // --- drawing ---------------------------------------------------------------------------------------------------

  // Once for every change of the window, before Bokeh paints it.
  draw(force = false) {
    const seen = this.seen, key = Object.values(seen).join();
    if (key === this.state.last && !force) return;
    const sink = this.collect(seen, false);
    this.source.drawn.data = plait.columnsOf(sink);
    this.source.letters.data = this.letters(sink, seen);
    if (this.state.path) this.drawPath(seen);
    const letters = this.source.letters.data.x.length;
    const counts = { cell: sink.cell, draws: this.state.draws + 1, rectangles: sink.count, letters };
    Object.assign(this.state, counts, { last: key });
  }

  collect(seen, onlyPath) {
    return plait.collect(this.timelines, this.geometry, this.codes, seen, onlyPath);
  }

  // Letters in blocks that are wide enough; where those are too many, in the widest.
  letters(sink, seen) {
    const out = { x: [], y: [], text: [], sort: [] }, scale = seen.pixels / (seen.end - seen.start);
    if (this.geometry.line_pixels < 14) return out;
    for (const [line, i, place] of this.lettered(sink.labelled, scale)) {
      const timeline = this.timelines[line], [from, to] = plait.workOf(timeline, i, seen);
      const text = plait.letters(this.words, timeline, i, (to - from) * scale, this.rounds);
      if (!text) continue;
      out.x.push((from + to) / 2);
      out.y.push((place.top + place.bottom) / 2);
      out.text.push(text);
      out.sort.push(timeline.sort[i]);
    }
    return out;
  }

  lettered(candidates, scale) {
    const onPath = ([line, i]) => this.timelines[line].onPath[i];
    let chosen = this.state.path ? candidates.filter(onPath) : candidates;
    for (let least = 20; chosen.length > plait.MOST_LETTERS; least *= 1.5) {
      chosen = chosen.filter(([line, i]) => this.timelines[line].length[i] * scale >= least);
    }
    return chosen;
  }

  // The critical path: its spans in full colour, and a line from each to the next.
  drawPath(seen) {
    this.source.critical.data = plait.columnsOf(this.collect(seen, true));
    this.source.path.data = this.pathLine(seen);
  }

  pathLine(seen) {
    const x = [], y = [];
    this.timelines.forEach((timeline, line) => {
      let before = -Infinity;
      for (const i of timeline.critical) {
        const to = timeline.start[i] + timeline.length[i];
        const from = Math.max(timeline.start[i], Math.min(to, before)); // until then it waited
        before = to;
        if (to < seen.start) continue;
        if (from > seen.end || x.length > plait.MOST_CORNERS) break;
        const height = this.heightOf(line, i, 0.9);
        x.push(from, to);
        y.push(height, height);
      }
      x.push(NaN);
      y.push(NaN);
    });
    return x.length > plait.MOST_CORNERS ? { x: [], y: [] } : { x, y };
  }

  togglePath(on) {
    this.state.path = on;
    this.glyph.drawn.fill_alpha = { value: on ? 0.22 : 1 };
    if (!on) {
      this.source.critical.data = Object.fromEntries(plait.SIDES.map((name) => [name, []]));
      this.source.path.data = { x: [], y: [] };
    }
    this.draw(true);
  }

  dress(theme) {
    for (const name of ["drawn", "critical"]) this.glyph[name].fill_color.transform.palette = theme.sorts;
    this.glyph.letters.text_color.transform.palette = theme.letters;
    for (const name of ["path", "chosen"]) this.glyph[name].line_color = { value: theme.ink };
    this.named("row").fill_color = theme.field;
    plait.dressAxes(this.plot, theme);
  }

  // Labels for the width there is.
  fit() {
    const short = this.view.el.clientWidth < this.geometry.narrow;
    if (this.state.short !== short) {
      this.state.short = short;
      this.plot.left[0].major_label_overrides = new Map(short ? this.geometry.short_labels : this.geometry.labels);
      this.plot.below[0].ticker.desired_num_ticks = short ? 4 : 8;
    }
    this.draw();
  }

  // --- the window ------------------------------------------------------------------------------------------------

  moveTo(start, end) {
    const all = this.whole[1] - this.whole[0];
    const width = Math.min(all, Math.max(all * 1e-6, end - start));
    const from = Math.min(this.whole[1] - width, Math.max(this.whole[0], start));
    this.plot.x_range.setv({ start: from, end: from + width });
  }

  showAll() {
    this.moveTo(...this.whole);
  }

  zoom(factor, around) {
    const { start, end } = this.plot.x_range, middle = around === undefined ? (start + end) / 2 : around;
    this.moveTo(middle - (middle - start) * factor, middle + (end - middle) * factor);
  }

  pan(share) {
    const { start, end } = this.plot.x_range;
    this.moveTo(start + (end - start) * share, end + (end - start) * share);
  }

  // So many rows down.
  scroll(rows) {
    const { height, shown, row_height } = this.geometry;
    if (shown >= height) return;
    const top = Math.min(height - shown, Math.max(0, this.plot.y_range.end + rows * row_height));
    this.plot.y_range.setv({ start: top + shown, end: top });
  }

  // So that lines from `top` to `bottom` are seen, in the middle where they were not.
  reveal(top, bottom) {
    const { start, end } = this.plot.y_range;
    if (top >= end && bottom <= start) return;
    this.scroll(((top + bottom) / 2 - end - this.geometry.shown / 2) / this.geometry.row_height);
  }

  showRow(row) {
    const top = row * this.geometry.row_height, bottom = top + this.geometry.lines;
    this.state.row = row;
    this.named("row").setv({ top: top - 0.2, bottom: bottom + 0.2, visible: row >= 0 });
    if (row >= 0) this.reveal(top, bottom);
  }

  // --- spans -----------------------------------------------------------------------------------------------------

  // The top and the bottom of the band in which a span lies.
  bandOf(line, i) {
    const { band, row } = plait.placeOf(this.timelines[line], this.geometry, i);
    const top = row * this.geometry.row_height + line, [upper, lower] = this.geometry.bands[band];
    return [top + upper, top + lower];
  }

  heightOf(line, i, share = 0.5) {
    const [top, bottom] = this.bandOf(line, i);
    return top + (bottom - top) * share;
  }

  // Outline a span, and move the window to it where it cannot be seen.
  choose(line, i) {
    const timeline = this.timelines[line], from = timeline.start[i], to = from + timeline.length[i];
    const { start, end } = this.plot.x_range, width = end - start, middle = (from + to) / 2;
    const near = (to - from + 1e-9) * 60;
    this.state.chosen = [line, i];
    if (to - from < width / this.pixels) this.moveTo(middle - near, middle + near);
    else if (from < start || to > end) this.moveTo(middle - width / 2, middle + width / 2);
    const [top, bottom] = this.bandOf(line, i);
    this.reveal(top, bottom);
    this.source.chosen.data = { left: [from], right: [to], top: [top], bottom: [bottom], sort: [0] };
  }

  // What the pointer is on: {line, row, band, ...plait.at}, or null.
  at(clientX, clientY) {
    const { geometry, timelines, plot } = this, { frame } = this.view, box = this.view.el.getBoundingClientRect();
    const sx = clientX - box.left, sy = clientY - box.top;
    if (!frame.bbox.contains(sx, sy)) return null;
    const moment = frame.x_scale.invert(sx), height = frame.y_scale.invert(sy);
    const row = Math.floor(height / geometry.row_height), inside = height - row * geometry.row_height;
    const line = Math.floor(inside);
    if (row < 0 || row >= this.data.rows.length || line >= timelines.length) return null;
    const band = inside - line < (geometry.bands[0][1] + geometry.bands[1][0]) / 2 ? 0 : 1;
    const cell = Math.max(this.state.cell, (3 * (plot.x_range.end - plot.x_range.start)) / this.pixels);
    const found = plait.at(timelines[line], geometry, row, band, moment, cell);
    return found && { ...found, line, row, band };
  }

  // Where a span is on the screen.
  screenOf(line, i) {
    const timeline = this.timelines[line], box = this.view.el.getBoundingClientRect(), { x_range } = this.plot;
    const middle = timeline.start[i] + timeline.length[i] / 2;
    const moment = Math.min(x_range.end, Math.max(x_range.start, middle));
    const { x_scale, y_scale } = this.view.frame;
    return { x: box.left + x_scale.compute(moment), y: box.top + y_scale.compute(this.heightOf(line, i)) };
  }
};

plait.columnsOf = (sink) =>
  Object.fromEntries(plait.SIDES.map((name) => [name, sink[name].subarray(0, sink.count)]));

// The row and the band of a span.
plait.placeOf = function (timeline, geometry, i) {
  const index = plait.firstAbove(timeline.first, 0, timeline.first.length, i) - 1, bands = geometry.bands.length;
  return { row: Math.floor(index / bands), band: index % bands };
};

// The longest stretch of a span, of what is seen of it, in which it does not wait.
plait.workOf = function ({ start, length, parts, pieces }, i, { start: low, end: high }) {
  let best = [0, 0], from = Math.max(low, start[i]);
  const keep = (to) => {
    if (Math.min(high, to) - from > best[1] - best[0]) best = [from, Math.min(high, to)];
  };
  for (let k = parts[i]; k < parts[i + 1]; k++) {
    if (pieces.code[k] !== 2) continue;
    const begin = start[i] + pieces.start[k];
    keep(begin);
    from = Math.max(low, begin + pieces.length[k]);
  }
  keep(start[i] + length[i]);
  return best;
};

// A finger that moves up or down scrolls the page, not the picture.
plait.letScroll = function (view) {
  view.canvas_view.events_el.style.touchAction = "pan-y";
};

plait.dressAxes = function (plot, theme) {
  for (const axis of [...plot.left, ...plot.below]) axis.major_label_text_color = theme.dim;
  for (const grid of plot.center) {
    if (grid.type === "Grid") grid.grid_line_color = grid.dimension === 0 ? theme.line : null;
  }
};
