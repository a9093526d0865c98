// The timeline: what Bokeh is given to draw, and how the window over it moves.
"use strict";

plait.MOST_CORNERS = 800;

plait.makePicture = async function (data, timelines, target) {
  const views = await Bokeh.embed.embed_item(data.items.timeline, target);
  const view = views.roots[0], plot = view.model, document_ = plot.document;
  const named = (name) => document_.get_model_by_name(name);
  const geometry = data.geometry, words = data.words;
  const codes = {
    exchange: words.sort_names.indexOf("exchange"),
    wait: words.sort_names.indexOf("wait"),
    count: words.sort_names.length,
  };
  const rounds = timelines.some(({ round }) => round.some((number) => number !== round[0]));
  const whole = [plot.x_range.start, plot.x_range.end];
  const source = Object.fromEntries(["drawn", "critical", "path", "letters", "chosen"].map((name) => [name, named(name)]));
  const glyph = Object.fromEntries(
    ["drawn", "critical", "path", "letters", "chosen"].map((name) => [name, named(`${name}-glyphs`).glyph]),
  );
  const state = { path: false, chosen: null, row: -1, last: "", cell: 0, draws: 0, rectangles: 0, letters: 0 };

  const pixels = () => Math.max(100, view.frame.bbox.width);
  const window_ = () => ({
    start: plot.x_range.start,
    end: plot.x_range.end,
    low: Math.min(plot.y_range.start, plot.y_range.end),
    high: Math.max(plot.y_range.start, plot.y_range.end),
    pixels: pixels(),
  });

  const columns = (sink) =>
    Object.fromEntries(["left", "right", "top", "bottom", "sort"].map((name) => [name, sink[name].subarray(0, sink.count)]));

  // Once for every change of the window, before Bokeh paints it.
  function draw(force = false) {
    const seen = window_();
    const key = [seen.start, seen.end, seen.low, seen.pixels].join();
    if (key === state.last && !force) return;
    state.last = key;
    const sink = plait.collect(timelines, geometry, codes, seen, false);
    source.drawn.data = columns(sink);
    source.letters.data = letters(sink, seen);
    if (state.path) drawPath(seen);
    Object.assign(state, { cell: sink.cell, draws: state.draws + 1, rectangles: sink.count, letters: source.letters.data.x.length });
  }

  // Letters in blocks that are wide enough; where those are too many, in the widest.
  function letters(sink, seen) {
    const scale = seen.pixels / (seen.end - seen.start);
    const out = { x: [], y: [], text: [], sort: [] };
    if (geometry.line_pixels < 14) return out;
    let least = 14, chosen = sink.labelled;
    if (state.path) chosen = chosen.filter(([line, i]) => timelines[line].onPath[i]);
    while (chosen.length > plait.MOST_LETTERS) {
      least *= 1.5;
      chosen = chosen.filter(([line, i]) => timelines[line].length[i] * scale >= least);
    }
    for (const [line, i, place] of chosen) {
      const timeline = timelines[line];
      const [from, to] = plait.workOf(timeline, i, seen);
      const text = plait.letters(words, timeline, i, (to - from) * scale, rounds);
      if (!text) continue;
      out.x.push((from + to) / 2);
      out.y.push((place.top + place.bottom) / 2);
      out.text.push(text);
      out.sort.push(timeline.sort[i]);
    }
    return out;
  }

  // The critical path: its spans in full colour, and a line from each to the next.
  function drawPath(seen) {
    const sink = plait.collect(timelines, geometry, codes, seen, true);
    source.critical.data = columns(sink);
    source.path.data = pathLine(seen);
  }

  // Where the line would have more corners than can be followed, there is none.
  function pathLine(seen) {
    const x = [], y = [];
    timelines.forEach((timeline, line) => {
      let before = -Infinity;
      for (const i of timeline.critical) {
        const to = timeline.start[i] + timeline.length[i];
        const from = Math.max(timeline.start[i], Math.min(to, before)); // until then it waited
        before = to;
        if (to < seen.start) continue;
        if (from > seen.end || x.length > plait.MOST_CORNERS) break;
        const middle = heightOf(timeline, line, i, 0.9);
        x.push(from, to);
        y.push(middle, middle);
      }
      x.push(NaN);
      y.push(NaN);
    });
    return x.length > plait.MOST_CORNERS ? { x: [], y: [] } : { x, y };
  }

  const bands = geometry.bands.length;
  const bandOf = (timeline, i) => plait.firstAbove(timeline.first, 0, timeline.first.length, i) - 1;
  const rowOf = (timeline, i) => Math.floor(bandOf(timeline, i) / bands);
  function heightOf(timeline, line, i, share = 0.5) {
    const [top, bottom] = geometry.bands[bandOf(timeline, i) % bands];
    return rowOf(timeline, i) * geometry.row_height + line + top + (bottom - top) * share;
  }

  function moveTo(start, end) {
    const least = (whole[1] - whole[0]) * 1e-6;
    const width = Math.min(whole[1] - whole[0], Math.max(least, end - start));
    const from = Math.min(whole[1] - width, Math.max(whole[0], start));
    plot.x_range.setv({ start: from, end: from + width });
  }

  function zoom(factor, around) {
    const { start, end } = plot.x_range;
    const middle = around === undefined ? (start + end) / 2 : around;
    moveTo(middle - (middle - start) * factor, middle + (end - middle) * factor);
  }

  const pan = (share) => {
    const { start, end } = plot.x_range;
    moveTo(start + (end - start) * share, end + (end - start) * share);
  };

  function scroll(lines) {
    const top = Math.min(geometry.height - geometry.shown, Math.max(0, plot.y_range.end + lines * geometry.row_height));
    if (geometry.shown < geometry.height) plot.y_range.setv({ start: top + geometry.shown, end: top });
  }

  function showRow(row) {
    const top = row * geometry.row_height, box = named("row");
    state.row = row;
    box.setv({ top: top - 0.2, bottom: top + geometry.lines + 0.2, visible: row >= 0 });
    if (row >= 0 && (top < plot.y_range.end || top + geometry.lines > plot.y_range.start)) {
      scroll((top - plot.y_range.end - geometry.shown / 2 + geometry.lines / 2) / geometry.row_height);
    }
  }

  function togglePath(on) {
    state.path = on;
    glyph.drawn.fill_alpha = { value: on ? 0.22 : 1 };
    if (!on) {
      source.critical.data = { left: [], right: [], top: [], bottom: [], sort: [] };
      source.path.data = { x: [], y: [] };
    }
    draw(true);
  }

  // Outline a span, and move the window to it where it cannot be seen.
  function choose(line, i) {
    state.chosen = [line, i];
    const timeline = timelines[line], from = timeline.start[i], to = from + timeline.length[i];
    const { start, end } = plot.x_range, width = end - start;
    const least = 4 * width / pixels();
    if (to - from < least / 4) moveTo((from + to) / 2 - (to - from + 1e-9) * 60, (from + to) / 2 + (to - from + 1e-9) * 60);
    else if (from < start || to > end) moveTo((from + to - width) / 2, (from + to + width) / 2);
    const row = rowOf(timeline, i), top = row * geometry.row_height + line;
    if (top < plot.y_range.end || top + 1 > plot.y_range.start) scroll((top - plot.y_range.end) / geometry.row_height);
    const [upper, lower] = geometry.bands[bandOf(timeline, i) % bands];
    source.chosen.data = { left: [from], right: [to], top: [top + upper], bottom: [top + lower], sort: [0] };
  }

  // What the pointer is on: {line, row, band, ...plait.at}, or null.
  function at(clientX, clientY) {
    const box = view.el.getBoundingClientRect(), frame = view.frame;
    const sx = clientX - box.left, sy = clientY - box.top;
    if (!frame.bbox.contains(sx, sy)) return null;
    const moment = frame.x_scale.invert(sx), height = frame.y_scale.invert(sy);
    const row = Math.floor(height / geometry.row_height), line = Math.floor(height - row * geometry.row_height);
    if (row < 0 || row >= data.rows.length || line >= timelines.length) return null;
    const band = height - row * geometry.row_height - line < (geometry.bands[0][1] + geometry.bands[1][0]) / 2 ? 0 : 1;
    const cell = Math.max(state.cell, (3 * (plot.x_range.end - plot.x_range.start)) / pixels());
    const found = plait.at(timelines[line], geometry, row, band, moment, cell);
    return found && { ...found, line, row, band };
  }

  // Where a moment and a line are on the screen: for tests, and for the tooltip of a span that a key chose.
  function placeOf(line, i) {
    const timeline = timelines[line], box = view.el.getBoundingClientRect();
    const moment = Math.min(plot.x_range.end, Math.max(plot.x_range.start, timeline.start[i] + timeline.length[i] / 2));
    return {
      x: box.left + view.frame.x_scale.compute(moment),
      y: box.top + view.frame.y_scale.compute(heightOf(timeline, line, i)),
    };
  }

  function dress(theme) {
    for (const name of ["drawn", "critical"]) glyph[name].fill_color.transform.palette = theme.sorts;
    glyph.letters.text_color.transform.palette = theme.letters;
    glyph.path.line_color = { value: theme.ink };
    glyph.chosen.line_color = { value: theme.ink };
    named("row").fill_color = theme.field;
    plait.dressAxes(plot, theme);
  }

  function fit() {
    const short = view.el.clientWidth < geometry.narrow;
    const overrides = new Map(short ? geometry.short_labels : geometry.labels);
    const axis = plot.left[0];
    if (state.short !== short) axis.major_label_overrides = overrides;
    if (state.short !== short) plot.below[0].ticker.desired_num_ticks = short ? 4 : 8;
    state.short = short;
    draw();
  }

  for (const property of [plot.x_range.properties.start, plot.x_range.properties.end]) property.change.connect(() => draw());
  for (const property of [plot.y_range.properties.start, plot.y_range.properties.end]) property.change.connect(() => draw());
  plot.properties.inner_width.change.connect(() => fit());

  return {
    plot, view, state, rowOf, bandOf, draw, zoom, pan, scroll, showRow, togglePath, choose, at, placeOf, dress, fit,
    showAll: () => moveTo(...whole),
  };
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

plait.dressAxes = function (plot, theme) {
  for (const axis of [...plot.left, ...plot.below]) axis.major_label_text_color = theme.dim;
  for (const grid of plot.center) if (grid.type === "Grid") grid.grid_line_color = grid.dimension === 0 ? theme.line : null;
};
