// What can be seen of the timelines, as rectangles: spans in the window, and what is narrower than a cell put together.
//
//   spans        |F0|F1|   |F2            |x|
//   cells of a   [stacked ][F2            ][x]
//   few pixels
//
// The rectangles of a cell are stacked, each as high as its share of the time; what is left is idle or waits.
"use strict";

plait.MOST_RECTANGLES = 4000; // Bokeh paints about 250 in a millisecond
plait.MOST_LETTERS = 260;
plait.LEAST_CELL_PIXELS = 3;
plait.LEAST_HEIGHT = 0.25; // of a band: a message of a microsecond is to be seen
plait.WAIT_HEIGHT = 0.2; // a wait is a thin line at the bottom

plait.makeSink = function () {
  const size = plait.MOST_RECTANGLES + 64;
  const sink = { count: 0, labelled: [] };
  for (const name of ["left", "right", "top", "bottom", "sort"]) sink[name] = new Float64Array(size);
  return sink;
};

// The rectangles of all timelines in `view` ({start, end, low, high, pixels}); with `onlyPath` of critical spans alone.
// Cells grow until there are few enough.
plait.collect = function (timelines, geometry, codes, view, onlyPath) {
  const scale = view.pixels / (view.end - view.start);
  let cell = 2 ** Math.ceil(Math.log2(plait.LEAST_CELL_PIXELS / scale));
  for (let turn = 0; turn < 40; turn++, cell *= 2) {
    const sink = plait.makeSink();
    if (plait.fill(sink, timelines, geometry, codes, { ...view, scale, cell }, onlyPath)) {
      sink.cell = cell;
      return sink;
    }
  }
  throw new Error("the picture has more rows than can be drawn");
};

plait.fill = function (sink, timelines, geometry, codes, view, onlyPath) {
  const height = geometry.row_height;
  const rows = (timelines[0].first.length - 1) / geometry.bands.length;
  const firstRow = Math.max(0, Math.floor(view.low / height));
  const endRow = Math.min(rows, Math.ceil(view.high / height));
  for (let row = firstRow; row < endRow; row++) {
    for (let line = 0; line < timelines.length; line++) {
      for (let band = 0; band < geometry.bands.length; band++) {
        const top = row * height + line;
        const [upper, lower] = geometry.bands[band];
        const place = { band, index: row * geometry.bands.length + band, top: top + upper, bottom: top + lower };
        plait.fillBand(sink, timelines[line], codes, place, view, onlyPath, line);
        if (sink.count > plait.MOST_RECTANGLES) return false;
      }
    }
  }
  return true;
};

plait.fillBand = function (sink, timeline, codes, place, view, onlyPath, line) {
  const { start, length, first, reach, sort, onPath } = timeline;
  const end = first[place.index + 1];
  const cells = plait.makeCells(sink, codes, place, view);
  for (let i = plait.firstAbove(reach, first[place.index], end, view.start); i < end && start[i] < view.end; i++) {
    if (onlyPath && !onPath[i]) continue;
    if (start[i] + length[i] < view.start) continue;
    if (length[i] < view.cell) {
      plait.addSmall(cells, timeline, codes, i);
    } else {
      plait.addWide(cells, timeline, codes, i, view);
      if (place.band === 0 && length[i] * view.scale >= 14) sink.labelled.push([line, i, place]);
    }
    if (sink.count > plait.MOST_RECTANGLES) return;
  }
  cells.flush();
};

// A span narrower than a cell: its parts by their sums.
plait.addSmall = function (cells, timeline, codes, i) {
  const { start, length, transfer, wait, sort } = timeline;
  const own = Math.max(0, length[i] - transfer[i] - wait[i]);
  cells.small(sort[i], start[i], start[i] + length[i], own);
  if (transfer[i] > 0) cells.small(codes.exchange, start[i], start[i] + length[i], transfer[i]);
  if (wait[i] > 0) cells.small(codes.wait, start[i], start[i] + length[i], wait[i]);
};

// A wider one: what it does itself, and between that its other parts.
plait.addWide = function (cells, timeline, codes, i, view) {
  const { start, length, transfer, wait, sort, parts, pieces } = timeline;
  const from = start[i], to = start[i] + length[i];
  if (parts[i] === parts[i + 1] && transfer[i] + wait[i] > 0) {
    plait.addSmall(cells, timeline, codes, i); // the parts are not in the page, their sums are
    return;
  }
  let reached = from;
  for (let k = parts[i]; k < parts[i + 1]; k++) {
    const begin = from + pieces.start[k], finish = begin + pieces.length[k];
    if (finish < view.start) {
      reached = finish;
      continue;
    }
    if (begin > view.end) break;
    cells.add(sort[i], reached, begin);
    cells.add(pieces.code[k] === 2 ? codes.wait : codes.exchange, begin, finish);
    reached = Math.max(reached, finish);
  }
  cells.add(sort[i], reached, to);
};

// What is put into one band. `add`: a stretch; `small`: so many seconds of something between two moments.
plait.makeCells = function (sink, codes, place, view) {
  const seconds = new Float64Array(codes.count);
  const gap = 0.9 / view.scale, least = 0.8 / view.scale, tall = place.bottom - place.top;
  let open = NaN, from = 0, to = 0;

  function emit(code, left, right, top, bottom) {
    const at = sink.count++;
    if (at >= sink.left.length) return;
    sink.left[at] = left;
    sink.right[at] = right;
    sink.top[at] = top;
    sink.bottom[at] = bottom;
    sink.sort[at] = code;
  }

  function flush() {
    if (Number.isNaN(open)) return;
    const right = Math.max(to, from + least), width = right - from;
    const waits = seconds[codes.wait] > 0;
    seconds[codes.wait] = 0;
    let total = 0;
    for (let code = 0; code < codes.count; code++) total += seconds[code];
    const share = Math.min(1, Math.max(total / width, plait.LEAST_HEIGHT));
    let bottom = place.bottom;
    if (waits) emit(codes.wait, from, right, bottom - plait.WAIT_HEIGHT * tall, bottom);
    for (let code = 0; code < codes.count && total > 0; code++) {
      if (seconds[code] <= 0) continue;
      const high = (seconds[code] / total) * share * tall;
      emit(code, from, right, bottom - high, bottom);
      bottom -= high;
      seconds[code] = 0;
    }
    if (total === 0 && !waits) emit(place.last, from, right, bottom - plait.LEAST_HEIGHT * tall, bottom);
    open = NaN;
  }

  function small(code, begin, finish, amount) {
    const cell = Math.floor(begin / view.cell);
    if (cell !== open) {
      flush();
      open = cell;
      from = begin;
      to = finish;
    }
    to = Math.max(to, finish);
    place.last = code;
    seconds[code] += amount;
  }

  function add(code, begin, finish) {
    const width = finish - begin;
    if (width <= 0) return;
    if (width < view.cell) {
      small(code, begin, finish, width);
      return;
    }
    flush();
    const high = code === codes.wait ? plait.WAIT_HEIGHT * tall : tall;
    emit(code, begin, finish - Math.min(gap, 0.15 * width), place.bottom - high, place.bottom);
  }

  return { add, small, flush };
};

// What lies at a moment of a line's band: one span, or all that begin or end in the cell around it. Null: nothing.
plait.at = function (timeline, geometry, row, band, moment, cell) {
  const { first, reach, start, length, wait, transfer, sort } = timeline;
  const index = row * geometry.bands.length + band;
  const low = moment - cell / 2, high = moment + cell / 2;
  const found = [];
  for (let i = plait.firstAbove(reach, first[index], first[index + 1], low); i < first[index + 1]; i++) {
    if (start[i] > high) break;
    if (start[i] + length[i] >= low) found.push(i);
  }
  const wide = found.filter((i) => length[i] >= cell && start[i] <= moment && moment <= start[i] + length[i]);
  if (wide.length) return { span: wide[wide.length - 1] };
  if (found.length < 2) return found.length ? { span: found[0] } : null;
  const sum = (amount) => found.reduce((total, i) => total + amount(i), 0);
  const from = Math.min(...found.map((i) => start[i])), to = Math.max(...found.map((i) => start[i] + length[i]));
  return {
    spans: found,
    from,
    to,
    own_s: sum((i) => Math.max(0, length[i] - transfer[i] - wait[i])),
    bytes: sum((i) => timeline.bytes[i]),
  };
};
