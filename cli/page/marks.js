// What stands on a tile: each state has a mark of its own, so that its colour is never the only sign.

import { CORDONED, COLOURS, DRAINING, EVICTING, LATE, NEW, NOT_READY, READY, UNKNOWN } from './fleet.js';
import { colours } from './theme.js';

/** The colour of the mark of a state. */
export const markColour = (state) => (state === EVICTING ? '#ffffff' : colours.mark);

/** Draws the mark of a state into a box. */
export function drawMark(context, state, x, y, width, height, colour = markColour(state)) {
  const u = Math.min(width, height) / 12,
    cx = x + width / 2,
    cy = y + height / 2;
  const line = (...points) =>
    points.forEach(([dx, dy], k) => context[k ? 'lineTo' : 'moveTo'](cx + dx * u, cy + dy * u));
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = Math.max(1, 1.7 * u);
  context.beginPath();
  if (state === LATE) line([0, -3.2], [0, 0], [2.4, 1.6]);
  else if (state === UNKNOWN) context.arc(cx, cy, 2.6 * u, 0, 2 * Math.PI);
  else if (state === CORDONED) line([-3.6, 3.6], [3.6, -3.6]);
  else if (state === EVICTING) {
    line([-3, -3], [3, 3]);
    line([3, -3], [-3, 3]);
  } else if (state === DRAINING) {
    line([-3, -3.4], [0, -0.4], [3, -3.4]);
    line([-3, 0.4], [0, 3.4], [3, 0.4]);
  } else if (state === NOT_READY) {
    line([0, -3.6], [4, 3.6], [-4, 3.6]);
    context.fill();
    return;
  } else return;
  context.stroke();
}

/** Draws a tile with its mark. */
export function drawTile(context, state, x, y, width, height) {
  const radius = Math.min(4, width / 4);
  context.beginPath();
  if (state === NEW) {
    context.roundRect(x + 0.6, y + 0.6, width - 1.2, height - 1.2, radius);
    context.strokeStyle = colours.new;
    context.lineWidth = 1.2;
    context.setLineDash([2, 2]);
    context.stroke();
    context.setLineDash([]);
    return;
  }
  context.roundRect(x, y, width, height, radius);
  context.fillStyle = colours[COLOURS[state]];
  context.fill();
  if (state !== READY) drawMark(context, state, x, y, width, height);
}

/** Draws a tile large enough to be found where tiles are smaller than their marks. */
export function drawPin(context, state, x, y) {
  context.fillStyle = colours.panel;
  context.beginPath();
  context.arc(x, y, 8, 0, 2 * Math.PI);
  context.fill();
  drawTile(context, state, x - 6, y - 6, 12, 12);
}

/** Draws the mark of a zone that is disrupted. */
export function drawZoneMark(context, isFull, x, y) {
  context.fillStyle = context.strokeStyle = isFull ? colours.bad : colours.warn;
  context.lineWidth = 1.5;
  context.beginPath();
  context.arc(x, y, 5, 0, 2 * Math.PI);
  if (isFull) {
    context.fill();
    context.strokeStyle = colours.panel;
    context.beginPath();
    context.moveTo(x - 2, y - 2);
    context.lineTo(x + 2, y + 2);
    context.moveTo(x + 2, y - 2);
    context.lineTo(x - 2, y + 2);
    context.stroke();
  } else {
    context.stroke();
    context.beginPath();
    context.arc(x, y, 5, -Math.PI / 2, Math.PI / 2);
    context.fill();
  }
}
