// What the page draws from: columns of numbers, read once.
"use strict";

const plait = {};

// A column as a typed array.
plait.decode = function ({ type, data }) {
  const kinds = {
    float64: Float64Array, float32: Float32Array, int32: Int32Array, uint32: Uint32Array, uint8: Uint8Array,
  };
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new kinds[type](bytes.buffer);
};

// A timeline: its columns, and `reach`, the latest end so far in each band, by which the first visible span is found.
plait.readTimeline = function (given) {
  const timeline = { source: given.source, end_s: given.end_s, first: plait.decode(given.first) };
  for (const [name, column] of Object.entries(given.columns)) timeline[name] = plait.decode(column);
  timeline.pieces = {};
  for (const [name, column] of Object.entries(given.pieces)) timeline.pieces[name] = plait.decode(column);
  timeline.patterns = {};
  for (const [name, column] of Object.entries(given.patterns)) timeline.patterns[name] = plait.decode(column);
  timeline.critical = plait.decode(given.critical);
  timeline.onPath = new Uint8Array(timeline.start.length);
  for (const i of timeline.critical) timeline.onPath[i] = 1;
  timeline.reach = plait.reach(timeline);
  return timeline;
};

plait.reach = function ({ first, start, length }) {
  const reach = new Float64Array(start.length);
  for (let band = 0; band + 1 < first.length; band++) {
    let latest = -Infinity;
    for (let i = first[band]; i < first[band + 1]; i++) {
      latest = Math.max(latest, start[i] + length[i]);
      reach[i] = latest;
    }
  }
  return reach;
};

// The first of [low, high) whose value is above `least`; values ascend.
plait.firstAbove = function (values, low, high, least) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > least) high = middle;
    else low = middle + 1;
  }
  return low;
};
