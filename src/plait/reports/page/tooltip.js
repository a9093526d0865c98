// What is known of a span, in words: beside the pointer, and aloud where a key chose it.
"use strict";

plait.describe = function (data, timelines, hit) {
  return hit.spans ? plait.describeMany(data, timelines, hit) : plait.describeOne(data, timelines, hit.line, hit.span);
};

plait.describeOne = function (data, timelines, line, i) {
  const words = data.words, timeline = timelines[line];
  const row = data.rows[plait.placeOf(timeline, data.geometry, i).row];
  const lines = [
    `${plait.notation(words, timeline, i)}  ${words.kinds[timeline.kind[i]][1]}`,
    `rank ${row.rank}, ${timeline.source}`,
    `begins at ${plait.moment(timeline.start[i])}, lasts ${plait.seconds(timeline.length[i])}`,
  ];
  const inside = [];
  if (timeline.transfer[i] > 0) inside.push(`exchanges ${plait.seconds(timeline.transfer[i])}`);
  if (timeline.wait[i] > 0) inside.push(`waits ${plait.seconds(timeline.wait[i])}`);
  if (inside.length) lines.push(`of that ${inside.join(", ")}`);
  if (timeline.bytes[i] > 0) lines.push(`sends ${plait.bytes(timeline.bytes[i])}`);
  const cause = plait.describeCause(data, timeline, i);
  if (cause) lines.push(cause);
  const other = plait.describeMate(timelines, line, i);
  if (other) lines.push(other);
  return lines;
};

plait.describeCause = function (data, timeline, i) {
  const why = data.words.whys[timeline.why[i]], cause = timeline.cause[i];
  if (why === "start" || cause === -1) return "";
  const reason = {
    order: "waited for the end of",
    message: "waited for the message of",
    exchange: "waited for its group, and that for",
  }[why];
  if (cause < 0) return `${reason} what is not in the picture`;
  const rank = data.rows[plait.placeOf(timeline, data.geometry, cause).row].rank;
  return `${reason} ${plait.notation(data.words, timeline, cause)} on rank ${rank}`;
};

plait.describeMate = function (timelines, line, i) {
  const mate = timelines[line].mate[i];
  if (timelines.length < 2) return "";
  const other = timelines[1 - line];
  if (mate < 0) return `not ${other.source}`;
  const both = [timelines[line].length[i], other.length[mate]], [predicted, measured] = line ? both.reverse() : both;
  const off = predicted > 0 ? ` (measured ${plait.signed((measured / predicted - 1) * 100)} %)` : "";
  return `${other.source} ${plait.seconds(other.length[mate])}${off}`;
};

plait.signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(Math.abs(value) < 10 ? 1 : 0)}`;

plait.describeMany = function (data, timelines, { line, row, band, spans, from, to, own_s, bytes }) {
  const busy = to > from ? Math.min(1, own_s / (to - from)) : 0;
  const share = `${(busy * 100).toFixed(0)} % ${band ? "talking" : "computing"}`;
  const lines = [
    `${plait.counted(spans.length, "action")}, ${plait.seconds(to - from)}, ${share}`,
    `rank ${data.rows[row].rank}, ${timelines[line].source}, from ${plait.moment(from)} on`,
  ];
  if (bytes > 0) lines.push(`send ${plait.bytes(bytes)}`);
  return lines;
};

plait.makeTooltip = function (element) {
  function show(lines, x, y) {
    element.replaceChildren(
      ...lines.map((line, at) => {
        const row = document.createElement(at ? "div" : "strong");
        row.textContent = line;
        return row;
      }),
    );
    element.hidden = false;
    const { width, height } = element.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    element.style.left = `${Math.max(4, Math.min(room - width - 4, x + 14))}px`;
    element.style.top = `${y + 18 + height > window.innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
  }
  const hide = () => {
    element.hidden = true;
  };
  return { show, hide };
};
