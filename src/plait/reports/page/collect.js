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
plait.ALIKE = 0.12; // shares of neighbours that are drawn as one
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
    if (plait.fill(sink, timelines, geometry, codes, { ...view, scale, cell, onlyPath })) {
      sink.cell = cell;
      return sink;
    }
  }
  throw new Error("the picture has more rows than can be drawn");
};

plait.fill = function (sink, timelines, geometry, codes, view) {
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
        plait.fillBand(sink, timelines[line], codes, place, view, line);
        if (sink.count > plait.MOST_RECTANGLES) return false;
      }
    }
  }
  return true;
};

plait.fillBand = function (sink, timeline, codes, place, view, line) {
  const { start, length, first, reach, sort, onPath } = timeline;
  const end = first[place.index + 1];
  const cells = plait.makeCells(sink, codes, place, view);
  for (let i = plait.firstAbove(reach, first[place.index], end, view.start); i < end && start[i] < view.end; i++) {
    if (view.onlyPath && !onPath[i]) continue;
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

// A span narrower than a cell: its parts by their sums. `gap` is left free at its end.
plait.addSmall = function (cells, timeline, codes, i, gap = 0) {
  const { start, length, transfer, wait, sort } = timeline, end = start[i] + length[i] - gap;
  const own = Math.max(0, length[i] - transfer[i] - wait[i]);
  cells.small(sort[i], start[i], end, own);
  if (transfer[i] > 0) cells.small(codes.exchange, start[i], end, transfer[i]);
  if (wait[i] > 0 && !cells.onlyPath) cells.small(codes.wait, start[i], end, wait[i]);
};

// A wider one: what it does itself, and between that its other parts.
plait.addWide = function (cells, timeline, codes, i, view) {
  const { start, length, transfer, wait, sort, parts, pieces } = timeline;
  const from = start[i], to = start[i] + length[i];
  if (timeline.pattern[i] > 0) {
    plait.addPlaced(cells, timeline, codes, i, view);
    return;
  }
  if (parts[i] === parts[i + 1] && transfer[i] + wait[i] > 0) {
    // the parts are not in the page, their sums are
    cells.flush();
    plait.addSmall(cells, timeline, codes, i, cells.gap(length[i]));
    cells.flush();
    return;
  }
  const nothing = length[i] * 1e-6; // parts are of single precision
  let reached = from;
  for (let k = parts[i]; k < parts[i + 1]; k++) {
    const begin = from + pieces.start[k], finish = begin + pieces.length[k];
    if (finish < view.start) {
      reached = finish;
      continue;
    }
    if (begin > view.end) break;
    if (begin - reached > nothing) cells.add(sort[i], reached, begin, false);
    const code = pieces.code[k] === 2 ? codes.wait : codes.exchange;
    if (code !== codes.wait || !view.onlyPath) cells.add(code, begin, finish, to - finish <= nothing);
    reached = Math.max(reached, finish);
  }
  if (to - reached > nothing) cells.add(sort[i], reached, to, true);
};

// One whose exchanges stand where its pattern has them: all as long, `at` of the computing before each.
plait.addPlaced = function (cells, timeline, codes, i, view) {
  const { start, length, transfer, sort, pattern, patterns } = timeline;
  const first = patterns.first[pattern[i] - 1], count = patterns.first[pattern[i]] - first;
  const from = start[i], to = from + length[i], nothing = length[i] * 1e-6;
  const own = Math.max(0, length[i] - transfer[i]), each = (length[i] - own) / count;
  let reached = from;
  for (let k = 0; k < count; k++) {
    const begin = from + patterns.at[first + k] * own + k * each, finish = begin + each;
    if (begin > view.end) break;
    if (finish >= view.start) {
      if (begin - reached > nothing) cells.add(sort[i], reached, begin, false);
      cells.add(codes.exchange, begin, finish, to - finish <= nothing);
    }
    reached = finish;
  }
  if (to - reached > nothing) cells.add(sort[i], reached, to, true);
};

// What is put into one band. `add`: a stretch; `small`: so many seconds of something between two moments.
plait.makeCells = function (sink, codes, place, view) {
  const tall = place.bottom - place.top, least = 0.8 / view.scale;
  const gap = (width) => Math.min(0.9 / view.scale, 0.15 * width); // between neighbours
  let cell = plait.emptyBlock(codes.count), block = plait.emptyBlock(codes.count), open = NaN;

  function emit(code, left, right, high, bottom = place.bottom) {
    const at = sink.count++;
    if (at >= sink.left.length) return;
    sink.left[at] = left;
    sink.right[at] = right;
    sink.top[at] = bottom - high;
    sink.bottom[at] = bottom;
    sink.sort[at] = code;
  }

  // A cell that looks like the ones before it is put to them.
  function close() {
    if (Number.isNaN(open)) return;
    open = NaN;
    if (block.used && cell.from - block.to < view.cell && plait.alike(block, cell)) {
      block.to = Math.max(block.to, cell.to);
      for (let code = 0; code < codes.count; code++) block.seconds[code] += cell.seconds[code];
    } else {
      emitBlock();
      [block, cell] = [cell, block];
    }
    cell.used = false;
    cell.seconds.fill(0);
  }

  function emitBlock() {
    if (!block.used) return;
    const { seconds, from } = block, right = Math.max(block.to, from + least), waits = seconds[codes.wait] > 0;
    seconds[codes.wait] = 0;
    const total = seconds.reduce((sum, each) => sum + each, 0);
    const share = Math.min(1, Math.max(total / (right - from), plait.LEAST_HEIGHT));
    if (waits) emit(codes.wait, from, right, plait.WAIT_HEIGHT * tall);
    else if (total === 0) emit(block.last, from, right, plait.LEAST_HEIGHT * tall);
    let bottom = place.bottom;
    for (let code = 0; code < codes.count; code++) {
      if (seconds[code] <= 0) continue;
      const high = (seconds[code] / total) * share * tall;
      emit(code, from, right, high, bottom);
      bottom -= high;
    }
    block.used = false;
    seconds.fill(0);
  }

  function flush() {
    close();
    emitBlock();
  }

  function small(code, begin, finish, amount) {
    const number = Math.floor(begin / view.cell);
    if (number !== open) {
      close();
      open = number;
      Object.assign(cell, { used: true, from: begin, to: finish });
    }
    cell.to = Math.max(cell.to, finish);
    cell.last = code;
    cell.seconds[code] += amount;
  }

  // `ends`: the span ends with it, and its neighbour is to be told apart.
  function add(code, begin, finish, ends) {
    const width = finish - begin;
    if (width <= 0) return;
    if (width < view.cell) {
      small(code, begin, finish, width);
      return;
    }
    flush();
    emit(code, begin, ends ? finish - gap(width) : finish, code === codes.wait ? plait.WAIT_HEIGHT * tall : tall);
  }

  return { add, small, flush, gap, onlyPath: view.onlyPath };
};

plait.emptyBlock = (count) => ({ used: false, from: 0, to: 0, last: 0, seconds: new Float64Array(count) });

// True where both have the same things, in nearly the same shares; a cell's idle time is that before it.
plait.alike = function (block, cell) {
  const before = block.to - block.from, after = cell.to - block.to;
  if (!(before > 0 && after > 0)) return false;
  for (let code = 0; code < block.seconds.length; code++) {
    const one = block.seconds[code], other = cell.seconds[code];
    if (one > 0 !== other > 0 || Math.abs(one / before - other / after) > plait.ALIKE) return false;
  }
  return true;
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
