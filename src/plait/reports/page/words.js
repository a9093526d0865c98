// Figures and actions in words, as Plait writes them everywhere.
"use strict";

plait.threeDigits = (value) => String(Number(value.toPrecision(3)));

plait.seconds = function (duration) {
  const rounded = Number(duration.toPrecision(3));
  for (const [factor, unit] of [[1, "s"], [1e3, "ms"], [1e6, "µs"]]) {
    if (Math.abs(rounded) * factor >= 1 || unit === "µs") {
      const value = rounded * factor;
      return Math.abs(value) < 1000 ? `${plait.threeDigits(value)} ${unit}` : `${duration.toFixed(0)} ${unit}`;
    }
  }
  return "";
};

// A moment of the run, to the microsecond.
plait.moment = (at) => (Math.abs(at) < 1 ? `${(at * 1e3).toFixed(3)} ms` : `${at.toFixed(6)} s`);

plait.bytes = function (count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = count;
  for (const unit of units) {
    if (Math.abs(size) < 1024 || unit === "PiB") return `${size.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
    size /= 1024;
  }
  return "";
};

plait.counted = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

// Labels of the axes: all ticks in one unit, with as many digits as tell them apart.
plait.ticks = {
  seconds(tick, ticks) {
    const most = Math.max(...ticks.map(Math.abs));
    const [factor, unit] = most >= 1 ? [1, "s"] : most >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) * factor : 1;
    const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
    return `${(tick * factor).toFixed(digits)} ${unit}`;
  },
  bytes: (tick) => plait.bytes(tick).replace(".0 ", " "),
};

// 17:2F0, round:stage kind micro-batch.part
plait.notation = function (words, timeline, i) {
  const part = timeline.part[i] < 0 ? "" : `.${timeline.part[i]}`, letters = words.kinds[timeline.kind[i]][0];
  return `${timeline.round[i]}:${timeline.stage[i]}${letters}${timeline.micro_batch[i]}${part}`;
};

// The letters in a block: as much of the notation as fits in so many pixels.
plait.letters = function (words, timeline, i, pixels, rounds) {
  const part = timeline.part[i] < 0 ? "" : `.${timeline.part[i]}`;
  const short = `${words.kinds[timeline.kind[i]][0]}${timeline.micro_batch[i]}${part}`;
  const long = `${rounds ? `${timeline.round[i]}:` : ""}${timeline.stage[i]}${short}`;
  return [long, short, String(timeline.micro_batch[i])].find((text) => text.length * 6.4 + 5 <= pixels) || "";
};
