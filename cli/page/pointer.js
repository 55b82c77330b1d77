// The mouse and fingers on the map: choosing, moving, coming closer, and the words beside the pointer.

import { h, show } from './dom.js';
import { isTrouble, WORDS } from './fleet.js';
import { CARD } from './layout.js';
import { span, zoneName } from './words.js';

/** A pointer that has moved less than this has clicked. */
const CLICK = 4;

export function listenToPointer(canvas, tip, map, choose, chooseZone) {
  const pointers = new Map();
  let drag = null,
    pinch = 0;

  canvas.addEventListener(
    'wheel',
    (event) => {
      event.preventDefault();
      map.zoom(Math.exp(-event.deltaY * 0.0016), event.offsetX, event.offsetY);
    },
    { passive: false },
  );

  canvas.addEventListener('pointerdown', (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event);
    drag = { x: event.offsetX, y: event.offsetY, viewX: map.view.x, viewY: map.view.y, hasMoved: false };
  });

  canvas.addEventListener('pointermove', (event) => {
    if (pointers.has(event.pointerId)) pointers.set(event.pointerId, event);
    if (pointers.size === 2) pinched();
    else if (drag && pointers.size === 1) dragged(event);
    else hover(map.at(event.offsetX, event.offsetY).id, event);
  });

  function pinched() {
    const [a, b] = [...pointers.values()],
      apart = Math.hypot(a.offsetX - b.offsetX, a.offsetY - b.offsetY);
    if (pinch) map.zoom(apart / pinch, (a.offsetX + b.offsetX) / 2, (a.offsetY + b.offsetY) / 2);
    pinch = apart;
    if (drag) drag.hasMoved = true;
  }

  function dragged(event) {
    const dx = event.offsetX - drag.x,
      dy = event.offsetY - drag.y;
    drag.hasMoved ||= Math.hypot(dx, dy) > CLICK;
    if (drag.hasMoved && map.view.k > 1) map.pan(drag.viewX + dx, drag.viewY + dy);
  }

  function hover(id, event) {
    if (id !== map.hover) {
      map.hover = id;
      map.isDirty = true;
      canvas.classList.toggle('over', id >= 0);
    }
    // A card says it all.
    tip.hidden = id < 0 || map.layout.kind === CARD;
    if (tip.hidden) return;
    show(tip, words(map.fleet, id));
    tip.style.left = `${Math.min(event.offsetX + 14, map.width - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.min(event.offsetY + 16, map.height - tip.offsetHeight - 4)}px`;
  }

  function released(event) {
    const isClick = event.type === 'pointerup' && drag && !drag.hasMoved;
    pointers.delete(event.pointerId);
    pinch = 0;
    drag = null;
    if (!isClick) return;
    const { zone, id } = map.at(event.offsetX, event.offsetY);
    if (id >= 0) choose(id);
    else if (zone) chooseZone(zone);
  }
  canvas.addEventListener('pointerup', released);
  canvas.addEventListener('pointercancel', released);
  canvas.addEventListener('pointerleave', (event) => hover(-1, event));
}

function words(fleet, id) {
  const state = fleet.state[id],
    heard = fleet.heard[id],
    silent = (performance.now() - heard) / 1000;
  const last = heard && (isTrouble(state) || fleet.hearsAll) ? `, heard ${span(silent)} ago` : '';
  return [
    h('b', {}, fleet.names[id]),
    h('span', {}, `${WORDS[state]}${last}`),
    h('span', {}, zoneName(fleet.zoneOf[id].name)),
  ];
}
