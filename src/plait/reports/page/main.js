// The page comes to life: pictures, buttons, keys.
"use strict";

plait.start = async function () {
  const data = JSON.parse(document.getElementById("plait-data").textContent);
  if (data === null) {
    document.body.dataset.state = "ready";
    return;
  }
  const find = (id) => document.getElementById(id);
  const timelines = data.timelines.map(plait.readTimeline);
  const ranks = plait.readRanks(data.ranks);
  const picture = await plait.makePicture(data, timelines, find("picture"));
  const memory = data.items.memory ? await plait.makeMemory(data, picture, find) : null;
  const tooltip = plait.makeTooltip(find("tooltip"));
  Object.assign(plait, { data, timelines, picture, memory });

  plait.followTheme(data.themes, [picture, memory].filter(Boolean));
  plait.followPointer(find("picture"), data, timelines, picture, tooltip);
  plait.makeRankForm(find("rank-form"), find("rank-facts"), ranks, data.rows, (row) => picture.showRow(row));
  const commands = plait.makeCommands(data, timelines, picture, tooltip, find);
  plait.bindKeys(commands, find("picture"));
  for (const button of document.querySelectorAll("button[data-command]")) {
    button.addEventListener("click", () => commands[button.dataset.command]());
  }
  picture.fit();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  document.body.dataset.state = "ready";
};

plait.followTheme = function (themes, pictures) {
  const dark = matchMedia("(prefers-color-scheme: dark)"), paper = matchMedia("print");
  const dress = () => pictures.forEach((one) => one.dress(themes[dark.matches && !paper.matches ? 1 : 0]));
  dark.addEventListener("change", dress);
  paper.addEventListener("change", dress);
  dress();
};

plait.followPointer = function (element, data, timelines, picture, tooltip) {
  element.addEventListener("pointermove", (event) => {
    const hit = event.buttons ? null : picture.at(event.clientX, event.clientY);
    if (hit === null) tooltip.hide();
    else tooltip.show(plait.describe(data, timelines, hit), event.clientX, event.clientY);
  });
  element.addEventListener("pointerleave", tooltip.hide);
  element.addEventListener("wheel", tooltip.hide, { passive: true });
  element.addEventListener("click", (event) => {
    const hit = picture.at(event.clientX, event.clientY);
    if (hit && hit.span !== undefined) picture.choose(hit.line, hit.span);
  });
};

plait.makeCommands = function (data, timelines, picture, tooltip, find) {
  // From the span chosen to the next of its band, across the bands of its line; at first, the first that is seen.
  function step(by) {
    const chosen = picture.state.chosen;
    let [line, i] = chosen || [0, -1];
    const { start, length } = timelines[line], from = picture.plot.x_range.start;
    if (!start.length) return;
    if (chosen) i = Math.min(start.length - 1, Math.max(0, i + by));
    else i = Math.max(0, start.findIndex((begin, at) => begin + length[at] >= from));
    picture.choose(line, i);
    const lines = plait.describeOne(data, timelines, line, i), { x, y } = picture.screenOf(line, i);
    tooltip.show(lines, x, y);
    find("said").textContent = lines.join(". ");
  }
  function path() {
    const button = find("path-button");
    if (button === null || button.disabled) return;
    const on = !picture.state.path;
    button.setAttribute("aria-pressed", String(on));
    picture.togglePath(on);
    const words = data.paths.join(" ");
    find("said").textContent = on ? words : "The critical path is hidden.";
    find("path-words").textContent = on ? words : "";
  }
  return {
    in: () => picture.zoom(0.5),
    out: () => picture.zoom(2),
    whole: () => picture.showAll(),
    left: () => picture.pan(-0.2),
    right: () => picture.pan(0.2),
    up: () => picture.scroll(-1),
    down: () => picture.scroll(1),
    previous: () => step(-1),
    next: () => step(1),
    path,
    keys: () => find("keys").toggleAttribute("open"),
    hide: tooltip.hide,
  };
};

// Arrows belong to the picture; the others work everywhere but in a field.
plait.bindKeys = function (commands, element) {
  const everywhere = {
    "+": "in", "=": "in", "-": "out", 0: "whole", c: "path", "[": "previous", "]": "next", "?": "keys", Escape: "hide",
  };
  const inside = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) return;
    const command = everywhere[event.key] || (element.contains(event.target) ? inside[event.key] : undefined);
    if (command === undefined) return;
    event.preventDefault();
    commands[command]();
  });
};

plait.start().catch((error) => {
  const note = document.getElementById("broken");
  note.hidden = false;
  note.textContent = `The picture could not be drawn: ${error.message}. The tables below are whole.`;
  document.body.dataset.state = "broken";
  throw error;
});
