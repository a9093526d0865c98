// Memory of one rank over time, beside the device's limit.
"use strict";

plait.MOST_POINTS = 3000; // of a line; of more the lowest and the highest of each stretch are drawn

// Times and bytes; the last bytes stay until the run's end.
plait.NEAR = 5; // a limit so many times above the line would make it flat

plait.limitWords = function ({ limit, base }, near) {
  const said = [];
  if (limit === null) said.push("The limit of the device is not known.");
  else if (!near) said.push(`The limit of the device, ${plait.bytes(limit)}, is far above.`);
  if (base > 0) {
    said.push(`Both stand on the ${plait.bytes(base)} that the process held before it loaded anything;`);
    said.push("a prediction does not count them.");
  }
  return said.join(" ");
};

plait.readTrack = function (track, end) {
  const x = plait.decode(track.x), y = plait.decode(track.y);
  return { x: Float64Array.of(...x, Math.max(end, x[x.length - 1])), y: Float64Array.of(...y, y[y.length - 1]) };
};

plait.readTracks = function ({ limit, base, tracks }, timelines) {
  const lines = tracks.map((track, at) => track && plait.readTrack(track, timelines[at].end_s));
  const most = Math.max(1, ...lines.filter(Boolean).map(({ y }) => y.reduce((a, b) => Math.max(a, b), 0)));
  return { limit, base, lines, most };
};

plait.thinned = function (x, y, start, end) {
  const low = Math.max(0, plait.firstAbove(x, 0, x.length, start) - 1);
  const high = Math.min(x.length, plait.firstAbove(x, 0, x.length, end) + 1);
  const xs = [], ys = [];
  const stride = Math.max(1, Math.ceil((2 * (high - low)) / plait.MOST_POINTS));
  for (let from = low; from < high; from += stride) {
    let least = from, most = from;
    for (let i = from; i < Math.min(high, from + stride); i++) {
      if (y[i] < y[least]) least = i;
      if (y[i] > y[most]) most = i;
    }
    for (const i of least === most ? [least] : [Math.min(least, most), Math.max(least, most)]) {
      xs.push(x[i]);
      ys.push(y[i]);
    }
  }
  if (high > low && x[high - 1] > xs[xs.length - 1]) {
    xs.push(x[high - 1]);
    ys.push(y[high - 1]);
  }
  return { x: xs, y: ys };
};

plait.makeMemory = async function (data, picture, find) {
  const choice = find("memory-rank"), words = find("memory-words");
  const views = await Bokeh.embed.embed_item(data.items.memory, find("memory-picture"));
  const view = views.roots[0], plot = view.model;
  plait.letScroll(view);
  const named = (name) => plot.document.get_model_by_name(name);
  const tracks = new Map(data.memory.ranks.map((one) => [one.rank, plait.readTracks(one, data.timelines)]));

  function draw() {
    const one = tracks.get(Number(choice.value));
    const { start, end } = plot.x_range;
    data.memory.sources.forEach((name, at) => {
      const line = one.lines[at];
      named(`memory-${name}`).data = line ? plait.thinned(line.x, line.y, start, end) : { x: [], y: [] };
    });
    const { most } = one, near = one.limit !== null && one.limit <= plait.NEAR * most;
    const limit = named("limit");
    limit.visible = near;
    if (near) limit.location = one.limit;
    plot.y_range.setv({ start: 0, end: (near ? Math.max(most, one.limit) : most) * 1.08 });
    words.textContent = plait.limitWords(one, near);
  }

  // Under the timeline, moment under moment.
  const align = () => {
    plot.min_border_left = Math.round(picture.view.frame.bbox.left);
    plot.below[0].ticker.desired_num_ticks = picture.plot.below[0].ticker.desired_num_ticks;
  };
  picture.plot.properties.inner_width.change.connect(align);
  align();

  function dress(theme) {
    named("memory-predicted-glyphs").glyph.line_color = { value: theme.dim };
    named("memory-measured-glyphs").glyph.line_color = { value: theme.accent };
    named("limit").line_color = theme.alarm;
    plait.dressAxes(plot, theme);
  }

  // Both pictures show the same time, whichever is moved.
  const same = (from, to) => () => {
    if (to.start !== from.start || to.end !== from.end) to.setv({ start: from.start, end: from.end });
  };
  for (const name of ["start", "end"]) {
    plot.x_range.properties[name].change.connect(draw);
    plot.x_range.properties[name].change.connect(same(plot.x_range, picture.plot.x_range));
    picture.plot.x_range.properties[name].change.connect(same(picture.plot.x_range, plot.x_range));
  }
  choice.addEventListener("change", draw);
  draw();
  return { draw, dress, plot };
};
